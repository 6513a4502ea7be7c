use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};

impl<'a> Document<'a> for &'a Value {
    fn field(self, name: &str) -> Option<&'a Value> {
        self.as_object()?.get(name)
    }

    fn item(self, at: usize) -> Option<&'a Value> {
        self.as_array()?.get(at)
    }

    fn scalar(self) -> Option<Scalar<'a>> {
        match self {
            Value::Null => Some(Scalar::Null),
            Value::Bool(is) => Some(Scalar::Bool(*is)),
            Value::Number(number) => {
                let whole = number.as_i64().map(i128::from).or(number.as_u64().map(i128::from));
                let number =
                    whole.map_or(Number::Fraction(number.as_f64().unwrap_or_default()), Number::Whole);
                Some(Scalar::Number(number))
            }
            Value::String(text) => Some(Scalar::Text(text)),
            Value::Array(_) | Value::Object(_) => None,
        }
    }
}

fn literal() -> impl Strategy<Value = Literal> {
    prop_oneof![
        Just(Literal::Null),
        any::<bool>().prop_map(Literal::Bool),
        any::<i64>().prop_map(|number| Literal::Number(Number::Whole(number.into()))),
        (-1e300..1e300).prop_map(|number: f64| Literal::Number(Number::Fraction(number))),
        any::<String>().prop_map(Literal::Text),
    ]
}

fn test() -> impl Strategy<Value = Expression> {
    let step = prop_oneof![any::<String>().prop_map(Step::Field), (0..3usize).prop_map(Step::Item)];
    let comparison = prop::sample::select(vec![
        Comparison::Same,
        Comparison::Other,
        Comparison::Less,
        Comparison::AtMost,
        Comparison::More,
        Comparison::AtLeast,
    ]);
    let check = prop_oneof![
        (comparison, literal()).prop_map(|(comparison, literal)| Check::Compare(comparison, literal)),
        prop::collection::vec(literal(), 1..3).prop_map(Check::In),
        any::<String>().prop_map(Check::StartsWith),
        Just(Check::Exists),
    ];
    (prop::collection::vec(step, 0..3), check).prop_map(|(path, check)| Expression::Test(path, check))
}

fn expression() -> impl Strategy<Value = Expression> {
    test().prop_recursive(4, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 2..4).prop_map(Expression::And),
            prop::collection::vec(inner.clone(), 2..4).prop_map(Expression::Or),
            inner.prop_map(|other| Expression::Not(Box::new(other))),
        ]
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read_as_the_same(expression in expression()) {
        let text = expression.to_string();
        if text.len() <= partage_core::limits::FILTER_BYTES {
            prop_assert_eq!(Filter::parse(&text).expect(&text).expression, expression);
        }
    }

    #[test]
    fn any_text_is_a_filter_or_wrong_at_one_of_its_characters(
        text in r#"([a-z\$\.\[\]0-9 "\\u()=<>!,\-]|and |or |not |in |exists|starts_with |true|é){0,40}"#
    ) {
        match Filter::parse(&text) {
            Ok(filter) => prop_assert_eq!(Filter::parse(&filter.to_string()), Ok(filter)),
            Err(error) => prop_assert!((1..=text.chars().count() + 1).contains(&error.at), "{}", error),
        }
    }

    #[test]
    fn numbers_are_compared_by_what_they_are_worth(one in any::<i64>(), other in -1e19..1e19f64) {
        // With room for what 64 bits have, and 52 bits of a fraction.
        let exact = |number: f64| (number.floor() as i128, number - number.floor());
        let (floor, fraction) = exact(other);
        let expected = i128::from(one).cmp(&floor).then(0.0.partial_cmp(&fraction).unwrap());
        let (whole, fraction) = (Number::Whole(one.into()), Number::Fraction(other));
        prop_assert_eq!(whole.compare(fraction), expected);
        prop_assert_eq!(fraction.compare(whole), expected.reverse());
    }
}

/// A node parses it again that the first one sends it to.
#[test]
fn the_longest_and_the_deepest_filter_go_from_node_to_node() {
    let longest = ["a=1"; (partage_core::limits::FILTER_BYTES - 3) / 7 + 1].join(" or ");
    let deepest = format!("{}a=1", "not ".repeat(partage_core::limits::FILTER_DEPTH - 1));
    for text in [longest, deepest] {
        let filter = Filter::parse(&text).expect("within the bounds");
        assert_eq!(Filter::parse(&filter.to_string()), Ok(filter));
    }
}

#[test]
fn rows_match_as_the_filter_says() {
    let row = json!({
        "section": "net", "size": 120, "price": 1.0, "installed-size": 7, "gone": null, "is": true,
        "author": { "name": "Ada", "first name": "é" }, "tags": ["new", { "x": 1 }], "and": 3
    });
    for (filter, expected) in [
        (r#"section = "net" and size > 100"#, true),
        (r#"section = "net" and size > 120"#, false),
        (r#"section == "web" OR size >= 120"#, true),
        ("price = 1 and size = 120.0 and size < 120.5", true),
        ("installed-size <= 7 AND NOT installed-size < 7", true),
        (r#"author.name starts_with "A" and author."first name" = "\u00e9""#, true),
        (r#"tags[0] in ("old", "new") and tags[1].x = 1"#, true),
        ("tags[2] exists or author.none exists", false),
        ("gone exists and gone = null and gone != 1", true),
        ("none != 1", false),
        ("not none > 1", true),
        ("tags != 1 and not tags = 1 and tags exists", true),
        ("is = true and is != false", true),
        (r#"size = "120" or size > "1" or section > 1"#, false),
        (r#"section > "nes" and section < "nf""#, true),
        (r#""and" = 3 and author."name" exists"#, true),
        (r#"section = "web" and size > 1 or is = true"#, true),
        (r#"section = "web" and (size > 1 or is = true)"#, false),
        ("not (is = true) or is = false", false),
        ("$ exists and not $ = 1 and $.size = 120", true),
    ] {
        assert_eq!(Filter::parse(filter).expect(filter).matches(&row), expected, "{filter}");
    }
    assert!(Filter::parse("$ > 3").unwrap().matches(&json!(4)));
    assert!(Filter::parse("$[1] = -2e0").unwrap().matches(&json!([1, -2])));
    let large = Filter::parse("$ > 9007199254740993").unwrap();
    assert!(
        large.matches(&json!(9_007_199_254_740_994_u64)) && !large.matches(&json!(9_007_199_254_740_993_u64))
    );
}

#[test]
fn what_is_wrong_is_named_by_its_character() {
    let deep = format!("{}a = 1", "(".repeat(40));
    let long = "a".repeat(partage_core::limits::FILTER_BYTES + 1);
    for (filter, at, named) in [
        ("", 1, "path"),
        ("size >", 7, "value is expected"),
        ("size", 5, "comparison"),
        ("é = 'x'", 5, "double quotes"),
        (r#"a = "x"#, 5, "no closing double quote"),
        ("a = 1 b = 2", 7, "and, or"),
        ("(a = 1", 7, "closing parenthesis"),
        ("a = 1 and", 10, "path"),
        ("not = 1", 5, "path"),
        ("a in 3", 6, "parentheses"),
        ("a in (3", 8, "comma"),
        ("a[x] = 1", 3, "place in a list"),
        ("a = 1e999", 5, "number"),
        ("a = 1-2", 5, "number"),
        (r#"a = "\x""#, 6, "escape"),
        (r#"a = "\ud800""#, 6, "hex digits"),
        ("a..b = 1", 3, "path"),
        ("true = 1", 1, "double quotes"),
        (&deep, 34, "32 times"),
        (&long, 1, "4096"),
    ] {
        let error = Filter::parse(filter).expect_err(filter);
        assert!(error.at == at && error.what.contains(named), "{filter}: {error}");
    }
}

// An expression as text, in another way than its author would write it.

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, all: &[Expression], word: &str| {
            for (at, one) in all.iter().enumerate() {
                let word = if at == 0 { "" } else { word };
                match one {
                    Expression::And(_) | Expression::Or(_) => write!(f, "{word}({one})")?,
                    Expression::Not(_) | Expression::Test(..) => write!(f, "{word}{one}")?,
                }
            }
            Ok(())
        };
        match self {
            Expression::And(all) => list(f, all, " and "),
            Expression::Or(all) => list(f, all, " or "),
            Expression::Not(other) => write!(f, "not ({other})"),
            Expression::Test(path, check) => {
                if path.is_empty() {
                    f.write_str("$")?;
                }
                for (at, step) in path.iter().enumerate() {
                    match step {
                        Step::Field(name) if at == 0 => quoted(f, name)?,
                        Step::Field(name) => {
                            f.write_str(".")?;
                            quoted(f, name)?;
                        }
                        Step::Item(place) if at == 0 => write!(f, "$[{place}]")?,
                        Step::Item(place) => write!(f, "[{place}]")?,
                    }
                }
                write!(f, " {check}")
            }
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Check::Compare(comparison, literal) => write!(f, "{} {literal}", comparison.word()),
            Check::In(all) => {
                f.write_str("in (")?;
                for (at, one) in all.iter().enumerate() {
                    write!(f, "{}{one}", if at == 0 { "" } else { ", " })?;
                }
                f.write_str(")")
            }
            Check::StartsWith(prefix) => {
                f.write_str("starts_with ")?;
                quoted(f, prefix)
            }
            Check::Exists => f.write_str("exists"),
        }
    }
}

impl Comparison {
    fn word(self) -> &'static str {
        match self {
            Comparison::Same => "=",
            Comparison::Other => "!=",
            Comparison::Less => "<",
            Comparison::AtMost => "<=",
            Comparison::More => ">",
            Comparison::AtLeast => ">=",
        }
    }
}

impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Literal::Null => f.write_str("null"),
            Literal::Bool(is) => write!(f, "{is}"),
            Literal::Number(Number::Whole(number)) => write!(f, "{number}"),
            // With an exponent, so that it is read as a fraction again.
            Literal::Number(Number::Fraction(number)) => write!(f, "{number:e}"),
            Literal::Text(text) => quoted(f, text),
        }
    }
}

fn quoted(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    f.write_str("\"")?;
    for letter in text.chars() {
        match letter {
            '"' | '\\' => write!(f, "\\{letter}")?,
            control if control < ' ' => write!(f, "\\u{:04x}", u32::from(control))?,
            other => write!(f, "{other}")?,
        }
    }
    f.write_str("\"")
}
