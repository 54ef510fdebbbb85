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
    /// Never shortened.
    whole: bool,
}

impl Column {
    pub fn new(title: &'static str) -> Self {
        Self { title, right: false, whole: false }
    }
    pub fn whole(title: &'static str) -> Self {
        Self { title, right: false, whole: true }
    }
    pub fn number(title: &'static str) -> Self {
        Self { title, right: true, whole: true }
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
        let mut line = String::new();
        for (i, ((cell, width), column)) in cells.iter().zip(widths).zip(&self.columns).enumerate() {
            let cell = match self.terminal {
                Some(_) if !column.whole => text::fitted(cell, *width),
                _ => cell.as_str().into(),
            };
            let pad = width.saturating_sub(text::width(&cell));
            if i > 0 {
                line.push_str(&" ".repeat(GUTTER));
            }
            if column.right {
                line.push_str(&" ".repeat(pad));
            }
            line.push_str(&cell);
            if !column.right && i + 1 < cells.len() {
                line.push_str(&" ".repeat(pad));
            }
        }
        line
    }
}

/// Shortens the widest columns that may be, the last one first of equals, until a line fits.
fn fit(widths: &mut [usize], columns: &[Column], terminal: usize) {
    loop {
        let total = widths.iter().sum::<usize>() + GUTTER * widths.len().saturating_sub(1);
        if total <= terminal {
            return;
        }
        let shorter = (0..widths.len()).filter(|i| !columns[*i].whole && widths[*i] > LEAST);
        let Some(widest) = shorter.max_by_key(|i| widths[*i]) else { return };
        widths[widest] -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_widest_column_gives_way() {
        let columns = [Column::whole("A"), Column::new("B"), Column::new("C")];
        let mut widths = [20, 10, 100];
        fit(&mut widths, &columns, 80);
        assert_eq!(widths, [20, 10, 46]);
        fit(&mut widths, &columns, 30);
        assert_eq!(widths, [20, LEAST, LEAST]);
    }
}
