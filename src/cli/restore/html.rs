//! A report as one page: no script, nothing from elsewhere, to be kept or printed on A4.
//!
//! Invariant: what comes from records, names and users is escaped.

use super::sections::{Column, Section};
use crate::cli::text;
use std::fmt::Write;

const STYLE: &str = "@page{size:A4;margin:16mm 14mm}\
body{font:10pt/1.4 system-ui,sans-serif;color:#000;background:#fff;max-width:182mm;margin:0 auto;padding:8mm 0}\
h1{font-size:16pt;margin:0 0 1mm}h2{font-size:12pt;margin:7mm 0 1.5mm;border-bottom:.5pt solid #000;break-after:avoid}\
p{margin:1mm 0}table{border-collapse:collapse;width:100%;margin:1mm 0}thead{display:table-header-group}\
tr{break-inside:avoid}th,td{text-align:left;vertical-align:top;padding:.6mm 2mm .6mm 0;overflow-wrap:anywhere}\
th{font-weight:600}thead th{border-bottom:.5pt solid #888}table.facts th{width:38mm;white-space:nowrap}\
th{overflow-wrap:normal}td.s{white-space:nowrap}th.n,td.n{text-align:right;white-space:nowrap}table.rows{font-size:8.5pt}.bad{font-weight:700}\
@media print{body{max-width:none;padding:0}}";

/// A cell of no more characters is not broken.
const SHORT: usize = 12;

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text::clean(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// `made`: who made the page, and when.
pub fn page(title: &str, made: &str, sections: &[Section]) -> String {
    let (title, mut out) = (escape(title), String::new());
    let _ = writeln!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta http-equiv=\"Content-Security-Policy\" \
         content=\"default-src 'none'; style-src 'unsafe-inline'\">\n<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n\
         <body>\n<h1>{title}</h1>\n<p>{}</p>",
        escape(made)
    );
    for section in sections {
        let _ = writeln!(out, "<h2>{}</h2>", escape(section.title));
        for line in &section.problems {
            let _ = writeln!(out, "<p class=\"bad\">{}</p>", escape(line));
        }
        if !section.facts.is_empty() {
            let _ = writeln!(out, "<table class=\"facts\">");
            for (name, value) in &section.facts {
                let _ = writeln!(out, "<tr><th scope=\"row\">{}</th><td>{}</td></tr>", escape(name), escape(value));
            }
            let _ = writeln!(out, "</table>");
        }
        if !section.rows.is_empty() {
            rows(section, &mut out);
        }
        for line in &section.notes {
            let _ = writeln!(out, "<p>{}</p>", escape(line));
        }
    }
    out.push_str("</body>\n</html>\n");
    out
}

fn rows(section: &Section, out: &mut String) {
    let class = |number: bool, text: &str| match (number, text::width(text)) {
        (true, _) => " class=\"n\"",
        (false, 0..=SHORT) => " class=\"s\"",
        (false, _) => "",
    };
    let title = |c: &Column| format!("<th scope=\"col\"{}>{}</th>", class(c.number, ""), escape(c.title));
    let titles = section.columns.iter().map(title);
    let _ = writeln!(out, "<table class=\"rows\">\n<thead><tr>{}</tr></thead>\n<tbody>", titles.collect::<String>());
    for row in &section.rows {
        out.push_str("<tr>");
        for (cell, column) in row.iter().zip(&section.columns) {
            let _ = write!(out, "<td{}>{}</td>", class(column.number, cell), escape(cell));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody>\n</table>\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_name_holds_is_markup() {
        let bad = "<script>alert('x')</script>\"&\u{202e}\u{1b}[31m";
        let section = Section {
            title: "t",
            problems: vec![bad.into()],
            facts: vec![(bad.into(), bad.into())],
            columns: vec![Column { title: "c", number: false }],
            rows: vec![vec![bad.into()]],
            notes: vec![bad.into()],
        };
        let page = page(bad, bad, &[section]);
        assert!(
            !page.contains("<script") && !page.contains("alert('") && !page.contains(['\u{202e}', '\u{1b}']),
            "{page}"
        );
        let escaped = "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&quot;&amp;&lt;U+202E&gt;";
        assert_eq!(page.matches(escaped).count(), 8, "{page}");
    }
}
