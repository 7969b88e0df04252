//! Enumerations whose values have names in text.

use thiserror::Error;

/// An unknown name of a data type, an engine or the like.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown {what} {found:?}: expected one of {expected}")]
pub struct UnknownName {
    /// What was expected: "data type", "layout", "engine".
    pub what: &'static str,
    /// The word that was found.
    pub found: String,
    /// The words that are accepted.
    pub expected: &'static str,
}

/// Gives an enumeration `ALL`, `name`, `Display` and `FromStr`. Names are compared by `str::eq` unless `by` says
/// otherwise.
#[macro_export]
macro_rules! named {
    ($type:ident, $what:literal, [$($names:tt)+]) => {
        $crate::named!($type, $what, by str::eq, [$($names)+]);
    };
    ($type:ident, $what:literal, by $equals:path, [$first:ident = $name:literal $(, $other:ident = $others:literal)* $(,)?]) => {
        impl $type {
            /// Every value.
            pub const ALL: [$type; [$name $(, $others)*].len()] = [$type::$first $(, $type::$other)*];

            /// The name in text.
            pub const fn name(self) -> &'static str {
                match self {
                    $type::$first => $name,
                    $($type::$other => $others),*
                }
            }
        }

        impl ::std::fmt::Display for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl ::std::str::FromStr for $type {
            type Err = $crate::UnknownName;

            fn from_str(text: &str) -> Result<$type, $crate::UnknownName> {
                let found = $type::ALL.into_iter().find(|value| $equals(value.name(), text));
                found.ok_or_else(|| $crate::UnknownName {
                    what: $what,
                    found: text.chars().take(80).collect(),
                    expected: concat!($name $(, ", ", $others)*),
                })
            }
        }
    };
}
