//! The only metadata that repair reads from a code object: how many lanes a workgroup of a kernel may have.
//!
//! The metadata is msgpack. Only maps, arrays, strings and integers matter; everything else is stepped over.

/// The names of kernels with the most lanes of their workgroups (`.max_flat_workgroup_size`), sorted by name. Damaged
/// entries are left out.
pub(crate) fn workgroup_limits(metadata: &[u8]) -> Vec<(Box<str>, u32)> {
    let mut found = Vec::new();
    let _ = read_root(&mut Reader { rest: metadata }, &mut found);
    found.sort_unstable();
    found
}

fn read_root(reader: &mut Reader<'_>, found: &mut Vec<(Box<str>, u32)>) -> Option<()> {
    let Value::Map(count) = reader.next()? else { return None };
    for _ in 0..count {
        let key = reader.next()?;
        if !matches!(key, Value::Text("amdhsa.kernels")) {
            reader.skip_children(key)?;
            reader.skip()?;
            continue;
        }
        let Value::Array(kernels) = reader.next()? else { return None };
        for _ in 0..kernels {
            found.extend(read_kernel(reader)?);
        }
    }
    Some(())
}

fn read_kernel(reader: &mut Reader<'_>) -> Option<Option<(Box<str>, u32)>> {
    let Value::Map(count) = reader.next()? else { return None };
    let (mut symbol, mut lanes) = (None, None);
    for _ in 0..count {
        let key = reader.next()?;
        reader.skip_children(key)?;
        let value = reader.next()?;
        match (key, value) {
            (Value::Text(".symbol"), Value::Text(text)) => symbol = text.strip_suffix(".kd").map(Box::from),
            (Value::Text(".max_flat_workgroup_size"), Value::Number(number)) => lanes = u32::try_from(number).ok(),
            _ => reader.skip_children(value)?,
        }
    }
    Some(symbol.zip(lanes))
}

#[derive(Clone, Copy)]
enum Value<'a> {
    Map(u32),
    Array(u32),
    Text(&'a str),
    Number(u64),
    Other,
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(head)
    }

    /// An integer of `count` bytes, the highest first.
    fn number(&mut self, count: usize) -> Option<u64> {
        Some(self.take(count)?.iter().fold(0, |sum, &byte| sum << 8 | byte as u64))
    }

    fn text(&mut self, length: u64) -> Option<Value<'a>> {
        let bytes = self.take(usize::try_from(length).ok()?)?;
        Some(std::str::from_utf8(bytes).map_or(Value::Other, Value::Text))
    }

    fn other(&mut self, length: u64) -> Option<Value<'a>> {
        self.take(usize::try_from(length).ok()?)?;
        Some(Value::Other)
    }

    /// The next value; for maps and arrays only the count.
    fn next(&mut self) -> Option<Value<'a>> {
        let tag = self.take(1)?[0];
        Some(match tag {
            0x00..=0x7f => Value::Number(tag as u64),
            0x80..=0x8f => Value::Map(tag as u32 & 15),
            0x90..=0x9f => Value::Array(tag as u32 & 15),
            0xa0..=0xbf => self.text(tag as u64 & 31)?,
            // Nothing, false, true, negative numbers.
            0xc0..=0xc3 | 0xe0..=0xff => Value::Other,
            // Bytes, then extensions, with their length before them.
            0xc4..=0xc6 => {
                let length = self.number(1 << (tag - 0xc4))?;
                self.other(length)?
            }
            0xc7..=0xc9 => {
                let length = self.number(1 << (tag - 0xc7))?;
                self.other(length.checked_add(1)?)?
            }
            // Floats, integers, negative ones, extensions of a fixed length.
            0xca | 0xcb => self.other(4 << (tag - 0xca))?,
            0xcc..=0xcf => Value::Number(self.number(1 << (tag - 0xcc))?),
            0xd0..=0xd3 => self.other(1 << (tag - 0xd0))?,
            0xd4..=0xd8 => self.other(1 + (1 << (tag - 0xd4)))?,
            0xd9..=0xdb => {
                let length = self.number(1 << (tag - 0xd9))?;
                self.text(length)?
            }
            0xdc | 0xdd => Value::Array(self.number(2 << (tag - 0xdc))? as u32),
            0xde | 0xdf => Value::Map(self.number(2 << (tag - 0xde))? as u32),
        })
    }

    /// Skips the contents of a value that was read.
    fn skip_children(&mut self, value: Value<'_>) -> Option<()> {
        let children = |value: Value<'_>| match value {
            Value::Map(count) => 2 * count as u64,
            Value::Array(count) => count as u64,
            _ => 0,
        };
        // A counter instead of recursion, for any depth; each step takes at least one byte.
        let mut open = children(value);
        while open > 0 {
            open += children(self.next()?);
            open -= 1;
        }
        Some(())
    }

    fn skip(&mut self) -> Option<()> {
        let value = self.next()?;
        self.skip_children(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_found_among_other_things() {
        let mut bytes = vec![0x82];
        let text = |bytes: &mut Vec<u8>, text: &str| {
            bytes.extend([0xd9, text.len() as u8]);
            bytes.extend(text.as_bytes());
        };
        text(&mut bytes, "amdhsa.version");
        bytes.extend([0x92, 1, 0x81, 0xc0, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0]);
        text(&mut bytes, "amdhsa.kernels");
        bytes.push(0x92);
        for (symbol, lanes) in [("b.kd", 256u16), ("a.kd", 64)] {
            bytes.push(0x83);
            text(&mut bytes, ".args");
            bytes.extend([0x91, 0x80]);
            text(&mut bytes, ".max_flat_workgroup_size");
            bytes.push(0xcd);
            bytes.extend(lanes.to_be_bytes());
            text(&mut bytes, ".symbol");
            text(&mut bytes, symbol);
        }
        assert_eq!(workgroup_limits(&bytes), [("a".into(), 64), ("b".into(), 256)]);
        for length in 0..bytes.len() {
            workgroup_limits(&bytes[..length]);
        }
    }
}
