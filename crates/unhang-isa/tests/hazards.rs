//! Each rule on code that breaks it and on code that does not: `fixtures/hazards.s`.

use unhang_isa::audit::{Context, Rule, audit};
use unhang_isa::elf::CodeObject;
use unhang_isa::{Chip, Program};

const OBJECT: &[u8] = include_bytes!("fixtures/hazards.co");

fn findings(chip: Chip, workgroup_processor_mode: bool) -> Vec<(String, Vec<Rule>)> {
    let object = CodeObject::parse(OBJECT).unwrap();
    assert_eq!(object.chip(), Some(Chip::Gfx1030));
    object
        .functions
        .iter()
        .map(|function| {
            let program = Program::decode(function.code, Chip::Gfx1030, false).unwrap();
            let findings = audit(&program, chip, Context { workgroup_processor_mode });
            (function.name.to_owned(), findings.iter().map(|finding| finding.rule).collect())
        })
        .collect()
}

#[test]
fn each_function_breaks_the_rule_in_its_name_once() {
    let mut broken = std::collections::BTreeSet::new();
    let all = findings(Chip::Gfx1010, true);
    assert!(all.len() > 25);
    for (name, mut rules) in all {
        // Long image instructions stand in functions that are about something else.
        let long_images = rules.extract_if(.., |rule| *rule == Rule::ImageAddresses).count();
        let expected_images = if name.starts_with("image_then_") { 1 + name.contains("later") as usize } else { 0 };
        assert_eq!(long_images, expected_images, "{name}");
        broken.extend((long_images > 0).then(|| Rule::ImageAddresses.name().to_owned()));
        let expected = name.rsplit_once("__").unwrap().1.replace('_', "-");
        let names: Vec<_> = rules.iter().map(|rule| rule.name()).collect();
        if expected == "safe" {
            assert!(names.is_empty(), "{name}: {names:?}");
        } else {
            assert_eq!(names, [expected.as_str()], "{name}");
            broken.insert(expected);
        }
    }
    let every: std::collections::BTreeSet<_> = Rule::ALL.iter().map(|rule| rule.name().to_owned()).collect();
    assert_eq!(broken, every, "a rule without a function that breaks it");
}

#[test]
fn nothing_is_wrong_on_the_chip_that_the_code_was_compiled_for() {
    for chip in [Chip::Gfx1030, Chip::Gfx1036] {
        for (name, rules) in findings(chip, true) {
            assert!(rules.is_empty(), "{name} on {chip}: {rules:?}");
        }
    }
}

#[test]
fn misalignment_matters_in_workgroup_processor_mode_alone() {
    for (name, rules) in findings(Chip::Gfx1010, false) {
        assert!(!rules.contains(&Rule::LocalMisaligned), "{name}");
    }
}

#[test]
fn dot_products_are_legal_where_the_chip_has_them() {
    for (chip, legal) in [(Chip::Gfx1010, false), (Chip::Gfx1011, true), (Chip::Gfx1012, true), (Chip::Gfx1013, false)]
    {
        let all = findings(chip, false);
        let (_, rules) = all.iter().find(|(name, _)| name.starts_with("dot__")).unwrap();
        assert_eq!(rules.is_empty(), legal, "{chip}");
    }
}
