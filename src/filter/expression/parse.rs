//! SQL's words into a condition. Pure.
//!
//! Owns which part of SQL is taken, and what is said of the rest: what, where, and what to write instead. The words are
//! read by `sqlparser`; nothing of its tree is kept. Invariant: neither length nor depth of a text can exhaust the stack.

use super::columns::{self, Number};
use super::{Comparison, Condition, Function, Literal, Operand, Step};
use crate::error::{Error, Result, did_you_mean};
use crate::format::schema::Type as ColumnType;
use regex::{Regex, RegexBuilder};
use sqlparser::ast::{
    AccessExpr, BinaryOperator, Expr, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, InTarget, Subscript,
    UnaryOperator, Value,
};
use sqlparser::dialect::GenericDialect;
use sqlparser::parser::{Parser, ParserError};
use sqlparser::tokenizer::{Location, Token};

/// Bytes of a condition.
const LONGEST: usize = 8192;
/// Brackets, calls and NOTs in each other. Long chains of AND or OR count as one.
const DEEPEST: usize = 50;
/// Bytes of a regular expression, compiled.
const REGEX_SIZE: usize = 1 << 20;

const TAKEN: &str = "taken are columns, constants, = <> < <= > >=, AND, OR, NOT, IN (...), BETWEEN, LIKE, ILIKE, ~ \
    (regular expression), IS NULL, lower(), upper(), length()";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Number,
    Time,
    Truth,
    /// Only the record tells.
    Json,
    /// Null or not.
    Bytes,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Number => "a number",
            Self::Time => "a time",
            Self::Truth => "true or false",
            Self::Json => "JSON",
            Self::Bytes => "bytes",
        }
    }
}

fn wrong(at: Option<Location>, what: impl std::fmt::Display) -> Error {
    let place = match at {
        Some(Location { line: 0, .. }) | None => String::new(),
        Some(Location { line: 1, column }) => format!(" at character {column}"),
        Some(Location { line, column }) => format!(" at line {line}, character {column}"),
    };
    Error::config(format!("--where{place}: {what}"))
}

pub(super) fn condition(text: &str) -> Result<Condition> {
    if text.trim().is_empty() {
        return Err(Error::config("--where is empty: leave it out, or say what it has to match"));
    }
    if text.len() > LONGEST {
        return Err(Error::config(format!(
            "--where has {} bytes, at most {LONGEST} are taken: long lists go into --record-id @FILE",
            text.len()
        )));
    }
    let parsed =
        Parser::new(&GenericDialect {}).with_recursion_limit(DEEPEST).try_with_sql(text).and_then(|mut parser| {
            let parsed = parser.parse_expr()?;
            Ok((parsed, parser.peek_token()))
        });
    let (parsed, next) = parsed.map_err(|e| not_sql(&e))?;
    if next.token != Token::EOF {
        let what = format!("{} is not expected here: join conditions by AND or OR", next.token);
        return Err(wrong(Some(next.span.start), what));
    }
    of(&parsed)
}

/// The library puts the place at the end.
fn not_sql(error: &ParserError) -> Error {
    let told = match error {
        ParserError::TokenizerError(told) | ParserError::ParserError(told) => told.replace(['\n', '\r'], " "),
        ParserError::RecursionLimitExceeded => {
            return Error::config(format!("--where: it is nested deeper than {DEEPEST}: write it flatter"));
        }
    };
    let place = told.rsplit_once(" at Line: ").and_then(|(what, place)| {
        let (line, column) = place.split_once(", Column: ")?;
        Some((what.to_owned(), Location { line: line.parse().ok()?, column: column.parse().ok()? }))
    });
    match place {
        Some((what, at)) => wrong(Some(at), what),
        None => wrong(None, told.replace("found: EOF", "but it ends there")),
    }
}

/// Where an expression begins; walked without recursion.
fn at(mut expr: &Expr) -> Option<Location> {
    loop {
        expr = match expr {
            Expr::Identifier(ident) => return Some(ident.span.start),
            Expr::CompoundIdentifier(idents) => return idents.first().map(|ident| ident.span.start),
            Expr::Value(value) => return Some(value.span.start),
            Expr::TypedString(typed) => return Some(typed.value.span.start),
            Expr::Function(call) => return call.name.0.first()?.as_ident().map(|ident| ident.span.start),
            Expr::BinaryOp { left: inner, .. }
            | Expr::IsDistinctFrom(inner, _)
            | Expr::IsNotDistinctFrom(inner, _)
            | Expr::CompoundFieldAccess { root: inner, .. } => inner,
            Expr::Nested(inner)
            | Expr::UnaryOp { expr: inner, .. }
            | Expr::IsNull(inner)
            | Expr::IsNotNull(inner)
            | Expr::IsTrue(inner)
            | Expr::IsNotTrue(inner)
            | Expr::IsFalse(inner)
            | Expr::IsNotFalse(inner)
            | Expr::In { expr: inner, .. }
            | Expr::Between { expr: inner, .. }
            | Expr::Like { expr: inner, .. }
            | Expr::ILike { expr: inner, .. }
            | Expr::SimilarTo { expr: inner, .. }
            | Expr::RLike { expr: inner, .. }
            | Expr::Cast { expr: inner, .. } => inner,
            _ => return None,
        }
    }
}

fn of(expr: &Expr) -> Result<Condition> {
    match expr {
        Expr::Nested(inner) => of(inner),
        Expr::UnaryOp { op: UnaryOperator::Not, expr } => Ok(not(of(expr)?)),
        Expr::BinaryOp { op: op @ (BinaryOperator::And | BinaryOperator::Or), .. } => {
            let parts = chain(expr, op).into_iter().map(of).collect::<Result<_>>()?;
            Ok(if *op == BinaryOperator::And { Condition::All(parts) } else { Condition::Any(parts) })
        }
        Expr::BinaryOp { left, op, right } => match op {
            BinaryOperator::PGRegexMatch => regex(left, right, false),
            BinaryOperator::PGRegexIMatch => regex(left, right, true),
            BinaryOperator::PGRegexNotMatch => Ok(not(regex(left, right, false)?)),
            BinaryOperator::PGRegexNotIMatch => Ok(not(regex(left, right, true)?)),
            _ => match comparison(op) {
                Some(comparison) => compare(left, comparison, right),
                None => Err(wrong(at(expr), format!("{op} is not taken: {TAKEN}"))),
            },
        },
        Expr::IsNull(inner) => Ok(Condition::IsNull(operand(inner)?.0)),
        Expr::IsNotNull(inner) => Ok(not(Condition::IsNull(operand(inner)?.0))),
        Expr::In { expr, target: InTarget::List(list), negated, .. } => {
            let (asked, kind) = operand(expr)?;
            let mut literals = Vec::with_capacity(list.len());
            for item in list {
                match fit((asked.clone(), kind), operand(item)?, at(item))? {
                    (_, Operand::Literal(literal)) => literals.push(literal),
                    _ => return Err(wrong(at(item), "IN takes constants only")),
                }
            }
            Ok(negate(Condition::In(asked, literals), *negated))
        }
        Expr::Between { expr, negated, low, high } => {
            let (low, high) = (compare(expr, Comparison::AtLeast, low)?, compare(expr, Comparison::AtMost, high)?);
            Ok(negate(Condition::All(vec![low, high]), *negated))
        }
        Expr::Like { negated, any: false, expr, pattern, escape_char } => {
            Ok(negate(like(expr, pattern, escape_char.as_deref(), false)?, *negated))
        }
        Expr::ILike { negated, any: false, expr, pattern, escape_char } => {
            Ok(negate(like(expr, pattern, escape_char.as_deref(), true)?, *negated))
        }
        Expr::RLike { negated, expr, pattern, .. } => Ok(negate(regex(expr, pattern, false)?, *negated)),
        other => match operand(other)? {
            (operand, Kind::Truth | Kind::Json) => Ok(Condition::Is(operand)),
            (operand, kind) => {
                let what = format!("{} is {}, not a condition: compare it with something", operand.name(), kind.name());
                Err(wrong(at(other), what))
            }
        },
    }
}

fn not(condition: Condition) -> Condition {
    Condition::Not(Box::new(condition))
}

fn negate(condition: Condition, negated: bool) -> Condition {
    if negated { not(condition) } else { condition }
}

/// The parts of `a AND b AND c`, which is nested to the left.
fn chain<'e>(mut expr: &'e Expr, joined: &BinaryOperator) -> Vec<&'e Expr> {
    let mut parts = Vec::new();
    while let Expr::BinaryOp { left, op, right } = expr
        && op == joined
    {
        parts.push(&**right);
        expr = left;
    }
    parts.push(expr);
    parts.reverse();
    parts
}

fn comparison(op: &BinaryOperator) -> Option<Comparison> {
    Some(match op {
        BinaryOperator::Eq => Comparison::Equal,
        BinaryOperator::NotEq => Comparison::Unequal,
        BinaryOperator::Lt => Comparison::Less,
        BinaryOperator::LtEq => Comparison::AtMost,
        BinaryOperator::Gt => Comparison::More,
        BinaryOperator::GtEq => Comparison::AtLeast,
        _ => return None,
    })
}

fn compare(left: &Expr, comparison: Comparison, right: &Expr) -> Result<Condition> {
    let (a, b) = fit(operand(left)?, operand(right)?, at(left))?;
    Ok(Condition::Compare(a, comparison, b))
}

/// Two operands that can be compared. A constant beside a time becomes one.
fn fit(a: (Operand, Kind), b: (Operand, Kind), at: Option<Location>) -> Result<(Operand, Operand)> {
    let time = |operand: Operand| match operand {
        Operand::Literal(Literal::Text(text)) => match columns::time_us(&text) {
            Some(us) => Ok(Operand::Literal(Literal::Time(us))),
            None => Err(wrong(at, format!("{text:?} is not a time: use '2026-10-08' or '2026-10-08T14:11:24Z'"))),
        },
        other => Ok(other),
    };
    match (a.1, b.1) {
        (Kind::Bytes, _) | (_, Kind::Bytes) => {
            Err(wrong(at, "bytes can be compared with nothing: use IS NULL or IS NOT NULL"))
        }
        (Kind::Time, Kind::Text) if matches!(b.0, Operand::Literal(_)) => Ok((a.0, time(b.0)?)),
        (Kind::Text, Kind::Time) if matches!(a.0, Operand::Literal(_)) => Ok((time(a.0)?, b.0)),
        (x, y) if x == y || x == Kind::Json || y == Kind::Json => Ok((a.0, b.0)),
        (x, y) => {
            let quote = match (x, y) {
                (Kind::Text, Kind::Number) | (Kind::Number, Kind::Text) => {
                    ": constants in single quotes are text, others are numbers"
                }
                _ => "",
            };
            let (a, b) = (a.0.name(), b.0.name());
            Err(wrong(at, format!("{a} is {}, {b} is {}{quote}", x.name(), y.name())))
        }
    }
}

fn text_of(expr: &Expr) -> Result<(Operand, Option<Location>)> {
    let at = at(expr);
    match operand(expr)? {
        (operand, Kind::Text | Kind::Json) => Ok((operand, at)),
        (operand, kind) => Err(wrong(at, format!("{} is {}, not text", operand.name(), kind.name()))),
    }
}

fn constant(expr: &Expr, what: &str) -> Result<String> {
    match expr {
        Expr::Value(value) => value.value.clone().into_string(),
        _ => None,
    }
    .ok_or_else(|| wrong(at(expr), format!("{what} has to be a constant text in single quotes")))
}

fn compiled(pattern: &str, insensitive: bool, at: Option<Location>) -> Result<Regex> {
    let mut builder = RegexBuilder::new(pattern);
    builder.case_insensitive(insensitive).size_limit(REGEX_SIZE).build().map_err(|e| {
        let told = e.to_string();
        let why = told.lines().last().unwrap_or_default().trim().trim_start_matches("error: ").to_owned();
        wrong(at, format!("{pattern:?} is not a regular expression: {why}"))
    })
}

fn regex(left: &Expr, right: &Expr, insensitive: bool) -> Result<Condition> {
    let (operand, _) = text_of(left)?;
    let pattern = constant(right, "a regular expression")?;
    Ok(Condition::Matches(operand, compiled(&pattern, insensitive, at(right))?))
}

fn like(left: &Expr, right: &Expr, escape: Option<&Expr>, insensitive: bool) -> Result<Condition> {
    let (operand, _) = text_of(left)?;
    let pattern = constant(right, "a pattern of LIKE")?;
    let escape = match escape {
        None => None,
        Some(expr) => {
            let text = constant(expr, "the character of ESCAPE")?;
            let mut chars = text.chars();
            match (chars.next(), chars.next()) {
                (Some(one), None) => Some(one),
                _ => return Err(wrong(at(expr), "ESCAPE takes one character")),
            }
        }
    };
    let mut regex = String::from("(?s)\\A");
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        match c {
            _ if Some(c) == escape => match chars.next() {
                Some(next) => regex += &regex::escape(next.encode_utf8(&mut [0; 4])),
                None => return Err(wrong(at(right), "the pattern ends with the character of ESCAPE")),
            },
            '%' => regex += ".*",
            '_' => regex.push('.'),
            _ => regex += &regex::escape(c.encode_utf8(&mut [0; 4])),
        }
    }
    regex += "\\z";
    Ok(Condition::Matches(operand, compiled(&regex, insensitive, at(right))?))
}

fn operand(expr: &Expr) -> Result<(Operand, Kind)> {
    match expr {
        Expr::Nested(inner) => operand(inner),
        Expr::Identifier(ident) => column(ident),
        Expr::CompoundIdentifier(idents) => match idents.split_first() {
            Some((root, rest)) => path(root, rest.iter().map(|ident| Step::Field(ident.value.clone())).collect()),
            None => Err(wrong(None, TAKEN)),
        },
        Expr::CompoundFieldAccess { root, access_chain } => {
            let Expr::Identifier(root) = &**root else {
                return Err(wrong(at(expr), "only value_json and headers have fields"));
            };
            path(root, access_chain.iter().map(step).collect::<Result<_>>()?)
        }
        Expr::Value(value) => literal(&value.value, false).ok_or_else(|| {
            let what = match value.value {
                Value::Null => "nothing is equal to NULL: use IS NULL or IS NOT NULL".to_owned(),
                _ => format!("this constant is not taken: {TAKEN}"),
            };
            wrong(Some(value.span.start), what)
        }),
        Expr::UnaryOp { op: UnaryOperator::Minus, expr: inner } => match &**inner {
            Expr::Value(value) => literal(&value.value, true),
            _ => None,
        }
        .ok_or_else(|| wrong(at(expr), "a minus goes before a number only")),
        Expr::TypedString(typed) => {
            let text = typed.value.value.clone().into_string().unwrap_or_default();
            fit(
                (Operand::Literal(Literal::Time(0)), Kind::Time),
                (Operand::Literal(Literal::Text(text)), Kind::Text),
                at(expr),
            )
            .map(|(_, time)| (time, Kind::Time))
        }
        Expr::Function(call) => {
            function(call).unwrap_or_else(|| Err(wrong(at(expr), format!("no such function; {TAKEN}"))))
        }
        other => Err(wrong(at(other), format!("this part of SQL is not taken: {TAKEN}"))),
    }
}

fn literal(value: &Value, negative: bool) -> Option<(Operand, Kind)> {
    let (literal, kind) = match value {
        Value::Number(text, _) => {
            let text = if negative { format!("-{text}") } else { text.clone() };
            let float = || text.parse().ok().filter(|float: &f64| float.is_finite()).map(Number::Float);
            (Literal::Number(text.parse().ok().map(Number::Int).or_else(float)?), Kind::Number)
        }
        Value::Boolean(is) if !negative => (Literal::Bool(*is), Kind::Truth),
        Value::SingleQuotedString(text) if !negative => (Literal::Text(text.clone()), Kind::Text),
        _ => return None,
    };
    Some((Operand::Literal(literal), kind))
}

const JSON: &str = "value_json";
const HEADERS: [&str; 2] = ["headers", "kafka_headers"];

fn is_headers(ident: &Ident) -> bool {
    HEADERS.iter().any(|name| ident.value.eq_ignore_ascii_case(name))
}

fn column(ident: &Ident) -> Result<(Operand, Kind)> {
    if ident.value.eq_ignore_ascii_case(JSON) {
        return path(ident, Vec::new());
    }
    if is_headers(ident) {
        return Err(wrong(Some(ident.span.start), "headers are asked for by name: headers['x-retries']"));
    }
    let Some(column) = columns::find(&ident.value) else {
        let all = columns::names().chain([JSON, HEADERS[0]]);
        let near = did_you_mean(&ident.value.to_ascii_lowercase(), all);
        let hint = match (ident.quote_style, near.is_empty()) {
            (Some('"'), _) => "; constants are in single quotes".to_owned(),
            (_, true) => {
                ". Columns are those of schemas/record.md; key, value, value_json.FIELD and headers['NAME']".into()
            }
            (_, false) => near,
        };
        return Err(wrong(Some(ident.span.start), format!("there is no column {:?}{hint}", ident.value)));
    };
    let kind = match columns::type_of(column) {
        ColumnType::Text | ColumnType::Headers => Kind::Text,
        ColumnType::Int32 | ColumnType::Int64 => Kind::Number,
        ColumnType::Timestamp => Kind::Time,
        ColumnType::Bytes => Kind::Bytes,
    };
    Ok((Operand::Column(column), kind))
}

/// What is behind `value_json` or `headers`.
fn path(root: &Ident, steps: Vec<Step>) -> Result<(Operand, Kind)> {
    if root.value.eq_ignore_ascii_case(JSON) {
        let mut text = JSON.to_owned();
        for step in &steps {
            match step {
                Step::Field(name) => text += &format!(".{name}"),
                Step::Index(index) => text += &format!("[{index}]"),
            }
        }
        return Ok((Operand::Json(steps, text), Kind::Json));
    }
    match (is_headers(root), steps.as_slice()) {
        (true, [Step::Field(name)]) => Ok((Operand::Header(name.clone()), Kind::Text)),
        (true, _) => Err(wrong(Some(root.span.start), "a header is asked for by its name alone: headers['x-retries']")),
        (false, _) => {
            column(root)?;
            Err(wrong(Some(root.span.start), format!("{} has no fields: only value_json and headers have", root.value)))
        }
    }
}

fn step(access: &AccessExpr) -> Result<Step> {
    let index = match access {
        AccessExpr::Dot(Expr::Identifier(ident)) => return Ok(Step::Field(ident.value.clone())),
        AccessExpr::Dot(other) => return Err(wrong(at(other), "a field is a name")),
        AccessExpr::Subscript(Subscript::Index { index }) => index,
        AccessExpr::Subscript(Subscript::Slice { .. }) => {
            return Err(wrong(None, "slices are not taken: one index only"));
        }
    };
    match index {
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(name) => Some(Step::Field(name.clone())),
            Value::Number(number, _) => number.parse().ok().map(Step::Index),
            _ => None,
        },
        _ => None,
    }
    .ok_or_else(|| wrong(at(index), "in brackets goes a name in single quotes, or a number from 0 on"))
}

/// `None`: it is none of ours.
fn function(call: &sqlparser::ast::Function) -> Option<Result<(Operand, Kind)>> {
    let [part] = call.name.0.as_slice() else { return None };
    let function = match part.as_ident()?.value.to_ascii_lowercase().as_str() {
        "lower" => Function::Lower,
        "upper" => Function::Upper,
        "length" => Function::Length,
        _ => return None,
    };
    let FunctionArguments::List(list) = &call.args else { return None };
    let [FunctionArg::Unnamed(FunctionArgExpr::Expr(argument))] = list.args.as_slice() else { return None };
    let kind = if function == Function::Length { Kind::Number } else { Kind::Text };
    Some(text_of(argument).map(|(operand, _)| (Operand::Call(function, Box::new(operand)), kind)))
}
