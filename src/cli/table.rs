//! Tables for people: one line a row, cut to the terminal's width; on a pipe nothing is cut.

use super::output::Out;
use super::text;
use crate::error::Result;
use std::io::IsTerminal;

/// Rows that the columns' widths are measured on; later ones follow.
const SAMPLE: usize = 500;
const GUTTER: usize = 2;
/// A shortened column keeps this much.
const LEAST: usize = 8;

#[derive(Debug, Clone, Copy)]
pub struct Column {
    title: &'static str,
    right: bool,
    width: Width,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Width {
    /// Never shortened.
    Whole,
    Shortened,
    /// Shortened, but kept twice as wide as others.
    Wide,
    /// Shortened, and left out where there is no room.
    Optional,
}

impl Column {
    const fn of(title: &'static str, width: Width) -> Self {
        Self { title, right: false, width }
    }
    pub const fn new(title: &'static str) -> Self {
        Self::of(title, Width::Shortened)
    }
    pub const fn whole(title: &'static str) -> Self {
        Self::of(title, Width::Whole)
    }
    pub const fn wide(title: &'static str) -> Self {
        Self::of(title, Width::Wide)
    }
    pub const fn optional(title: &'static str) -> Self {
        Self::of(title, Width::Optional)
    }
    pub const fn number(title: &'static str) -> Self {
        Self { title, right: true, width: Width::Whole }
    }
}

/// Prints rows as they come, but for the first ones, which tell the widths.
pub struct Table {
    columns: Vec<Column>,
    terminal: Option<usize>,
    bold: bool,
    waiting: Vec<Vec<String>>,
    widths: Option<Vec<usize>>,
}

impl Table {
    pub fn new(columns: Vec<Column>) -> Self {
        let is_terminal = std::io::stdout().is_terminal();
        let terminal = is_terminal.then(|| terminal_size::terminal_size().map_or(80, |(w, _)| usize::from(w.0)));
        Self { columns, terminal, bold: super::colour(is_terminal), waiting: Vec::new(), widths: None }
    }

    /// One row; its cells must be [`text::clean`].
    pub fn row(&mut self, cells: Vec<String>, out: &mut Out) -> Result<()> {
        match &self.widths {
            Some(widths) => out.line(&self.render(&cells, widths)),
            None => {
                self.waiting.push(cells);
                if self.waiting.len() >= SAMPLE { self.flush(out) } else { Ok(()) }
            }
        }
    }

    /// Prints what waits. Without any row nothing is printed, no header either.
    pub fn finish(mut self, out: &mut Out) -> Result<()> {
        if self.widths.is_none() && !self.waiting.is_empty() { self.flush(out) } else { Ok(()) }
    }

    fn flush(&mut self, out: &mut Out) -> Result<()> {
        let widths = self.measure();
        let header: Vec<String> = self.columns.iter().map(|c| c.title.to_owned()).collect();
        let header = self.render(&header, &widths);
        out.line(&if self.bold { format!("\u{1b}[1m{header}\u{1b}[0m") } else { header })?;
        for row in std::mem::take(&mut self.waiting) {
            out.line(&self.render(&row, &widths))?;
        }
        self.widths = Some(widths);
        Ok(())
    }

    fn measure(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = self.columns.iter().map(|c| text::width(c.title)).collect();
        for row in &self.waiting {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(text::width(cell));
            }
        }
        if let Some(terminal) = self.terminal {
            fit(&mut widths, &self.columns, terminal);
        }
        widths
    }

    fn render(&self, cells: &[String], widths: &[usize]) -> String {
        let (mut line, mut at) = (String::new(), 0);
        for ((cell, width), column) in cells.iter().zip(widths).zip(&self.columns).filter(|((_, width), _)| **width > 0)
        {
            let cell = match self.terminal {
                Some(_) if column.width != Width::Whole => text::fitted(cell, *width),
                _ => cell.as_str().into(),
            };
            let pad = width.saturating_sub(text::width(&cell));
            // What was left open on the right of the column before.
            line.extend(std::iter::repeat_n(' ', at + if column.right { pad } else { 0 }));
            line.push_str(&cell);
            at = GUTTER + if column.right { 0 } else { pad };
        }
        line
    }
}

/// Shortens the widest columns that may be until a line fits; where that is not enough, optional ones go (width 0).
fn fit(widths: &mut [usize], columns: &[Column], terminal: usize) {
    let whole = widths.to_vec();
    for without in [false, true] {
        widths.copy_from_slice(&whole);
        if without {
            let optional = widths.iter_mut().zip(columns).filter(|(_, c)| c.width == Width::Optional);
            optional.for_each(|(width, _)| *width = 0);
        }
        loop {
            let shown = widths.iter().filter(|width| **width > 0).count();
            if widths.iter().sum::<usize>() + GUTTER * shown.saturating_sub(1) <= terminal {
                return;
            }
            let share = |i: &usize| if columns[*i].width == Width::Wide { widths[*i] / 2 } else { widths[*i] };
            let shorter = (0..widths.len()).filter(|i| columns[*i].width != Width::Whole && share(i) > LEAST);
            let Some(widest) = shorter.max_by_key(share) else { break };
            widths[widest] -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_widest_column_gives_way() {
        let columns = [Column::whole("A"), Column::new("B"), Column::wide("C"), Column::optional("D")];
        let fitted = |terminal| {
            let mut widths = [20, 30, 100, 9];
            fit(&mut widths, &columns, terminal);
            widths
        };
        assert_eq!(fitted(200), [20, 30, 100, 9]);
        assert_eq!(fitted(120), [20, 28, 57, 9]);
        assert_eq!(fitted(90), [20, 18, 37, 9]);
        assert_eq!(fitted(57), [20, LEAST + 3, 22, 0]);
        assert_eq!(fitted(10), [20, LEAST, 2 * LEAST + 1, 0]);
    }
}
