//! Bringing the sums of the blocked direct convolution to the result.

use super::gather_work::{GatherWork, ResultBlock};

impl GatherWork<'_> {
    /// Writes a row's sums to the result from `column` on: `pixels` of every phase of columns, which lie next to each
    /// other. `to` is the row's first pixel.
    pub(super) fn finish(
        &self,
        block: &ResultBlock,
        column: usize,
        pixels: usize,
        sums: *const f32,
        to: *mut f32,
        by_channel: &[usize],
    ) {
        let columns = &self.gather.axes[1];
        let (phases, step) = (columns.phases.len(), columns.out_step);
        let width = block.vectors * self.kernels.lanes;
        let [_, channel_step, _, by_column] = self.gather.result;
        // SAFETY: pixels beyond the result's last column are left out below. So all places are this strip's own rows of
        // the result, which no other unit writes. The sums hold `pixels × phases` lines of `width`.
        unsafe {
            let to = to.add(column * by_column);
            if by_column == 1 && phases == step {
                let count = (pixels * phases).min(columns.result - column);
                (self.kernels.transpose)(sums, width, count, block.channels, to, by_channel.as_ptr());
                return;
            }
            if channel_step == 1 && phases == step {
                let count = (pixels * phases).min(columns.result - column);
                (self.kernels.rows)(sums, width, to, by_column, block.channels, count);
                return;
            }
            for pixel in 0..pixels {
                for phase in 0..phases {
                    let offset = pixel * step + phase;
                    if column + offset >= columns.result {
                        continue;
                    }
                    let from = sums.add((pixel * phases + phase) * width);
                    if channel_step == 1 {
                        (self.kernels.row)(from, 1, block.channels, to.add(offset * by_column));
                    } else {
                        for channel in 0..block.channels {
                            *to.add(offset * by_column + channel * channel_step) = *from.add(channel);
                        }
                    }
                }
            }
        }
    }
}
