//! Packing of filters for the blocked direct convolution.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::gather_work::{GatherWork, ResultBlock, Steps};
use super::workspace::Shared;
use crate::parallel::for_each_unit;

impl GatherWork<'_> {
    /// Everything that the packed filters depend on, apart from the filters.
    pub(super) fn signature(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let gather = self.gather;
        (gather.groups, gather.weight_group, gather.weight, gather.source_channels).hash(&mut hasher);
        (self.kernels.lanes, self.source_block, self.steps == Steps::One, &self.tap_order).hash(&mut hasher);
        self.blocks.iter().for_each(|block| (block.first, block.channels, block.vectors).hash(&mut hasher));
        hasher.finish()
    }

    /// Packs all filters: blocks of results, in each of them blocks of sources.
    pub(super) fn pack_filters(&self, weight: &[f32], packed: &mut [f32], threads: usize) {
        let gather = self.gather;
        let of_group = self.packed_length();
        let to = Shared(packed.as_mut_ptr());
        for_each_unit(threads, gather.groups * self.blocks.len(), |unit| {
            let (group, block) = (unit / self.blocks.len(), &self.blocks[unit % self.blocks.len()]);
            let width = block.vectors * self.kernels.lanes;
            let length = width * gather.source_channels * self.taps;
            // SAFETY: this block's part of the packed filters, which no other unit touches.
            let mut to =
                unsafe { std::slice::from_raw_parts_mut(to.get().add(group * of_group + block.packed), length) };
            for first in (0..gather.source_channels).step_by(self.source_block) {
                let channels = self.source_block.min(gather.source_channels - first);
                let (now, later) = to.split_at_mut(channels * self.taps * width);
                self.pack_block(weight, group, block, first, channels, now);
                to = later;
            }
        });
    }

    /// Packs the filters of one block of results for `channels` source channels from `first` on.
    pub(super) fn pack_block(
        &self,
        weight: &[f32],
        group: usize,
        block: &ResultBlock,
        first: usize,
        channels: usize,
        to: &mut [f32],
    ) {
        let gather = self.gather;
        let taps = &self.tap_order;
        let [by_result, by_source, by_row, by_column] = gather.weight;
        let width = block.vectors * self.kernels.lanes;
        assert_eq!(to.len(), channels * taps.len() * width, "room for the block");
        if block.channels < width {
            to.fill(0.0);
        }
        let from = &weight[group * gather.weight_group + block.first * by_result..];
        // Where the vector of a tap and a channel goes, and where a tap is in memory.
        let place = |tap: usize, channel: usize| {
            width * if self.steps == Steps::One { channel * taps.len() + tap } else { tap * channels + channel }
        };
        let memory = |[row, column]: [usize; 2]| row * by_row + column * by_column;
        let transpose = |from: &[f32], offsets: &[usize], to: &mut [f32]| {
            assert!((block.channels - 1) * by_result + offsets.len() <= from.len());
            // SAFETY: rows are the block's channels, which lie `by_result` apart. Columns are taps or channels that lie
            // next to each other, the last of which was just checked. Every place leaves room for the block's channels
            // in `to`, whose length was checked above.
            unsafe {
                let offsets = (offsets.len(), offsets.as_ptr());
                let transpose = self.kernels.transpose;
                transpose(from.as_ptr(), by_result, block.channels, offsets.0, to.as_mut_ptr(), offsets.1);
            }
        };
        if by_result == 1 {
            for (tap, &at) in taps.iter().enumerate() {
                for channel in 0..channels {
                    let from = &from[(first + channel) * by_source + memory(at)..][..block.channels];
                    to[place(tap, channel)..][..block.channels].copy_from_slice(from);
                }
            }
        } else if by_column == 1 && taps.len() == by_source.min(by_result) {
            // NCHW: taps lie together, and forward the channels behind them too.
            let mut order: Vec<usize> = (0..taps.len()).collect();
            order.sort_by_key(|&tap| memory(taps[tap]));
            let places = |channel: usize| order.iter().map(move |&tap| place(tap, channel));
            if by_source == taps.len() {
                let offsets: Vec<usize> = (0..channels).flat_map(places).collect();
                transpose(&from[first * by_source..], &offsets, to);
            } else {
                for channel in 0..channels {
                    let offsets: Vec<usize> = places(channel).collect();
                    transpose(&from[(first + channel) * by_source..], &offsets, to);
                }
            }
        } else if by_source == 1 {
            for (tap, &at) in taps.iter().enumerate() {
                let offsets: Vec<usize> = (0..channels).map(|channel| place(tap, channel)).collect();
                transpose(&from[first + memory(at)..], &offsets, to);
            }
        } else {
            for (tap, &at) in taps.iter().enumerate() {
                for channel in 0..channels {
                    for result in 0..block.channels {
                        to[place(tap, channel) + result] =
                            from[result * by_result + (first + channel) * by_source + memory(at)];
                    }
                }
            }
        }
    }
}
