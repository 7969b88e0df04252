//! Data formats of typed buffer accesses: 77 unified numbers, each a list of bit fields and their interpretation.
//!
//! The numbers are LLVM's (`UfmtGFX10` in `SIDefines.h`); a test asks its assembler for each name. Names list the
//! highest bits first, and component X is the lowest (Mesa: `R11G11B10_FLOAT` is `10_11_11_FLOAT`).

use half::f16;

use crate::float::{nearest_half, toward_zero_half};

/// How bits represent a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Number {
    /// From 0 to 1.
    Unorm,
    /// From -1 to 1.
    Snorm,
    /// An integer, read as a float.
    Uscaled,
    Sscaled,
    Uint,
    Sint,
    Float,
}

use Number::*;

const SIX: &[Number] = &[Unorm, Snorm, Uscaled, Sscaled, Uint, Sint];
const SEVEN: &[Number] = &[Unorm, Snorm, Uscaled, Sscaled, Uint, Sint, Float];
const THREE: &[Number] = &[Uint, Sint, Float];

/// Widths from the lowest bits up, and the numbers that follow each other from format 1 on.
const GROUPS: [(&[u32], &[Number]); 14] = [
    (&[8], SIX),
    (&[16], SEVEN),
    (&[8, 8], SIX),
    (&[32], THREE),
    (&[16, 16], SEVEN),
    (&[11, 11, 10], SEVEN),
    (&[10, 11, 11], SEVEN),
    (&[2, 10, 10, 10], SIX),
    (&[10, 10, 10, 2], SIX),
    (&[8, 8, 8, 8], SIX),
    (&[32, 32], THREE),
    (&[16, 16, 16, 16], SEVEN),
    (&[32, 32, 32], THREE),
    (&[32, 32, 32, 32], THREE),
];

/// A data format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataFormat {
    pub widths: &'static [u32],
    pub number: Number,
}

impl DataFormat {
    /// The format with a unified number; `None` for 0, which is invalid, and past the last.
    pub(crate) fn new(number: u8) -> Option<DataFormat> {
        let mut place = (number as usize).checked_sub(1)?;
        for (widths, numbers) in GROUPS {
            match numbers.get(place) {
                Some(&number) => return Some(DataFormat { widths, number }),
                None => place -= numbers.len(),
            }
        }
        None
    }

    /// Bytes of an element.
    pub(crate) fn bytes(&self) -> u32 {
        self.widths.iter().sum::<u32>() / 8
    }

    /// The bits of a one: for a component selected as one, and for a fourth component that the format lacks.
    pub(crate) fn one(&self) -> u32 {
        if matches!(self.number, Uint | Sint) { 1 } else { 1f32.to_bits() }
    }

    /// The bits of each component of an element, with its width.
    fn fields(&self, element: u128) -> impl Iterator<Item = (u32, u32)> {
        let mut low = 0;
        self.widths.iter().map(move |&width| {
            let bits = (element >> low) as u32 & (u32::MAX >> (32 - width));
            low += width;
            (bits, width)
        })
    }

    /// The register contents for each component of an element; missing ones are 0, 0, 0 and 1.
    pub(crate) fn decode(&self, element: u128) -> [u32; 4] {
        let mut components = [0, 0, 0, self.one()];
        for (component, (bits, width)) in components.iter_mut().zip(self.fields(element)) {
            *component = self.decode_component(bits, width);
        }
        components
    }

    /// The half-register contents for each component; `None` if no source says which number it becomes.
    fn decode_halves(&self, element: u128) -> [Option<u16>; 4] {
        let mut components = [Some(0), Some(0), Some(0), Some(self.half_one())];
        for (component, (bits, width)) in components.iter_mut().zip(self.fields(element)) {
            *component = self.decode_half(bits, width);
        }
        components
    }

    /// The bits of a one in half a register, as in [`DataFormat::one`].
    fn half_one(&self) -> u16 {
        if matches!(self.number, Uint | Sint) { 1 } else { f16::ONE.to_bits() }
    }

    fn decode_component(&self, bits: u32, width: u32) -> u32 {
        let signed = ((bits << (32 - width)) as i32) >> (32 - width);
        let most = (1u64 << width) - 1;
        match self.number {
            Unorm => (bits as f64 / most as f64) as f32,
            Snorm => (signed as f64 / (most >> 1) as f64).max(-1.0) as f32,
            Uscaled => bits as f32,
            Sscaled => signed as f32,
            Uint => return bits,
            Sint => return signed as u32,
            Float if width == 32 => return bits,
            // Below 16 bits, floats have no sign but the exponent of half precision.
            Float => f16::from_bits((bits << (16 - width) >> (width < 16) as u32) as u16).to_f32(),
        }
        .to_bits()
    }

    /// Packs components from registers into an element; `None` if no source settles which number of the format one
    /// becomes.
    pub(crate) fn encode(&self, components: [u32; 4]) -> Option<u128> {
        let mut element = 0;
        let mut low = 0;
        for (&component, &width) in components.iter().zip(self.widths) {
            let bits = self.encode_component(component, width)? & (u32::MAX >> (32 - width));
            element |= (bits as u128) << low;
            low += width;
        }
        Some(element)
    }

    /// Clamps and rounds according to Direct3D's "Data Conversion Rules", which these chips follow. Normalised numbers
    /// go to the nearest. Floats go towards zero, so a large one becomes the largest of the format. Negative floats
    /// become zero if the format has no sign. Scaled numbers must be exact, because those rules do not cover them.
    fn encode_component(&self, component: u32, width: u32) -> Option<u32> {
        let value = f32::from_bits(component);
        let most = (1i64 << width) - 1;
        let bits = match self.number {
            Unorm => return nearest(value, 0.0, most),
            Snorm => return nearest(value, -1.0, most >> 1),
            Uint => return Some(component.min(most as u32)),
            Sint => return Some((component as i32 as i64).clamp(-(most >> 1) - 1, most >> 1) as u32),
            Float if width == 32 => return Some(component),
            Float if width == 16 => return Some(toward_zero_half(value)),
            Float if value < 0.0 => return Some(0),
            Float => return Some(toward_zero_half(value) << 1 >> (16 - width)),
            Uscaled => value as u32,
            Sscaled => value as i32 as u32,
        };
        let bits = bits & (u32::MAX >> (32 - width));
        (self.decode_component(bits, width) == component).then_some(bits)
    }

    /// A component of an element as 16 bits, as Mesa's developers found it: singles go towards zero, normalised numbers
    /// to the nearest half, integers to the limits. Scaled numbers must be exact.
    fn decode_half(&self, bits: u32, width: u32) -> Option<u16> {
        let signed = ((bits << (32 - width)) as i32) >> (32 - width);
        let most = (1u64 << width) - 1;
        let half = match self.number {
            Unorm => nearest_half(bits as f64 / most as f64).to_bits(),
            Snorm => nearest_half((signed as f64 / (most >> 1) as f64).max(-1.0)).to_bits(),
            Uint => bits.min(u16::MAX as u32) as u16,
            Sint => signed.clamp(i16::MIN as i32, i16::MAX as i32) as u16,
            Float => toward_zero_half(f32::from_bits(self.decode_component(bits, width))) as u16,
            Uscaled | Sscaled => {
                let value = f32::from_bits(self.decode_component(bits, width));
                let half = f16::from_f32(value);
                return (half.to_f32() == value).then_some(half.to_bits());
            }
        };
        Some(half)
    }

    /// Extends 16 bits to a component in a register.
    fn widen(&self, half: u16) -> u32 {
        match self.number {
            Uint => half as u32,
            Sint => half as i16 as u32,
            _ => f16::from_bits(half).to_f32().to_bits(),
        }
    }
}

/// The multiple of `1 / one` nearest to a value between `least` and 1; NaN counts as zero. `None` in the middle between
/// two, where either is possible: the rules allow 0.6 of a step.
fn nearest(value: f32, least: f64, one: i64) -> Option<u32> {
    let exact = if value.is_nan() { 0.0 } else { (value as f64).clamp(least, 1.0) * one as f64 };
    let rounded = exact.round();
    ((exact - rounded).abs() < 0.4).then_some(rounded as i64 as u32)
}

/// How components are placed in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    /// One per register.
    Words,
    /// Two per register, as 16 bits.
    Halves,
    /// One, in the higher 16 bits.
    HighHalf,
}

/// A typed access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Typed {
    /// The number of components.
    pub components: u8,
    pub packing: Packing,
    /// The number of the format if the instruction has it, not the descriptor.
    pub format: Option<u8>,
}

impl Typed {
    /// Reads the part of a name after `format_`.
    pub(crate) fn named(name: &str, format: Option<u8>) -> Option<Typed> {
        let (packing, rest) = match (name.strip_prefix("d16_hi_"), name.strip_prefix("d16_")) {
            (Some(rest), _) => (Packing::HighHalf, rest),
            (None, Some(rest)) => (Packing::Halves, rest),
            (None, None) => (Packing::Words, name),
        };
        let components = ["x", "xy", "xyz", "xyzw"].iter().position(|&letters| letters == rest)? as u8 + 1;
        Some(Typed { components, packing, format })
    }

    /// The number of registers.
    pub(crate) fn registers(&self) -> u8 {
        match self.packing {
            Packing::Words => self.components,
            Packing::Halves => self.components.div_ceil(2),
            Packing::HighHalf => 1,
        }
    }

    /// The register of a component, from the first on, and the shift of its bits there. A component has 32 bits, or 16.
    fn place(&self, component: usize) -> (usize, u32) {
        match self.packing {
            Packing::Words => (component, 0),
            Packing::Halves => (component / 2, component as u32 % 2 * 16),
            Packing::HighHalf => (0, 16),
        }
    }

    /// The registers after a load of an element, or of nothing if out of range, given their old contents. `None` if a
    /// selected component is `None` in [`DataFormat::decode_halves`].
    pub(crate) fn load(
        &self,
        format: DataFormat,
        element: Option<u128>,
        selects: [u8; 4],
        old: [u32; 4],
    ) -> Option<[u32; 4]> {
        let (components, one) = match (element, self.packing) {
            (None, Packing::Words) => ([Some(0); 4], format.one()),
            (Some(element), Packing::Words) => (format.decode(element).map(Some), format.one()),
            (None, _) => ([Some(0); 4], format.half_one() as u32),
            (Some(element), _) => (format.decode_halves(element).map(|it| it.map(u32::from)), format.half_one() as u32),
        };
        let mut registers = old;
        for (component, &select) in selects.iter().enumerate().take(self.components as usize) {
            let value = match select {
                SELECT_ONE => one,
                SELECT_X.. => components[(select - SELECT_X) as usize & 3]?,
                _ => 0,
            };
            let (register, shift) = self.place(component);
            registers[register] = match self.packing {
                Packing::Words => value,
                _ => registers[register] & !(0xffff << shift) | value << shift,
            };
        }
        Some(registers)
    }

    /// The element to store from registers; missing components are zero. `None` as for [`DataFormat::encode`].
    pub(crate) fn store(&self, format: DataFormat, registers: [u32; 4]) -> Option<u128> {
        let mut components = [0; 4];
        for (number, component) in components.iter_mut().enumerate().take(self.components as usize) {
            let (register, shift) = self.place(number);
            let bits = registers[register] >> shift;
            *component = if self.packing == Packing::Words { bits } else { format.widen(bits as u16) };
        }
        format.encode(components)
    }
}

/// Selections of a component: 0 is a zero, 1 a one, and X, Y, Z and W start at 4.
const SELECT_ONE: u8 = 1;
const SELECT_X: u8 = 4;
/// Each component in its own position.
pub(crate) const IDENTITY: [u8; 4] = [4, 5, 6, 7];
