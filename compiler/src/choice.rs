//! Names of a few things of which a user chooses one: how all such enums are read, written and listed.

use crate::error::{Error, Result};
use schemars::{Schema, json_schema};

/// A thing among a few that have names.
pub trait Choice: Copy + PartialEq + 'static {
    /// What they are called together, as in "there is no NOUN `x`".
    const NOUN: &'static str;
    /// All of them.
    const ALL: &'static [Self];

    /// Its name.
    fn name_of(self) -> &'static str;

    /// What it means, in a few words.
    fn means(self) -> &'static str;

    /// The one of this name.
    ///
    /// # Errors
    /// Usage, with the names that there are.
    fn named(name: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|one| one.name_of() == name);
        found.copied().ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|one| one.name_of()).collect();
            Error::usage(format!("there is no {} `{name}`", Self::NOUN)).help(format!("known: {}", names.join(", ")))
        })
    }
}

/// The names of all of them, as JSON Schema has them.
pub fn schema<T: Choice>() -> Schema {
    let names: Vec<&str> = T::ALL.iter().map(|one| one.name_of()).collect();
    json_schema!({ "type": "string", "enum": names })
}

/// Implements [`Choice`] for an enum, and with it `Display`, `FromStr`, and serde and JSON Schema by name:
///
/// ```
/// #[derive(Debug, Clone, Copy, PartialEq)]
/// enum Order {
///     Rising,
///     Falling,
/// }
/// compress_compiler::choice!(Order, "order", [
///     Rising "rising" "the smallest first",
///     Falling "falling" "the largest first",
/// ]);
/// assert_eq!("falling".parse::<Order>().unwrap(), Order::Falling);
/// assert_eq!(Order::Rising.to_string(), "rising");
/// ```
#[macro_export]
macro_rules! choice {
    ($of:ident, $noun:literal, [$($one:ident $name:literal $means:literal),* $(,)?]) => {
        impl $crate::choice::Choice for $of {
            const NOUN: &'static str = $noun;
            const ALL: &'static [Self] = &[$($of::$one),*];

            fn name_of(self) -> &'static str {
                match self { $($of::$one => $name),* }
            }

            fn means(self) -> &'static str {
                match self { $($of::$one => $means),* }
            }
        }

        $crate::choice_text!($of);
    };
}

/// Makes an enum of a list, a row each: the variant, its name, what it means, and a constant with its facts. It implements
/// [`Choice`], and gives the facts of each.
#[macro_export]
macro_rules! choice_with_facts {
    (
        $(#[$about:meta])* $of:ident, $noun:literal, $seen:vis $facts:ty,
        [$($(#[$doc:meta])* $one:ident $name:literal $means:literal $row:path;)*]
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $of { $($(#[$doc])* $one),* }

        $crate::choice!($of, $noun, [$($one $name $means),*]);

        impl $of {
            /// What the list says of it.
            $seen fn facts(self) -> $facts {
                match self { $($of::$one => $row),* }
            }
        }
    };
}

/// Implements [`Choice`] for a reference to the row of a table: rows have a `name`, and say what they mean in `means`.
///
/// ```
/// struct Row {
///     name: &'static str,
///     means: &'static str,
/// }
/// #[derive(Clone, Copy)]
/// struct Order(&'static Row);
/// const ORDERS: &[Order] = &[Order(&Row { name: "rising", means: "the smallest first" })];
/// compress_compiler::choice_of_rows!(Order, "order", ORDERS);
/// assert!("rising".parse::<Order>().unwrap() == ORDERS[0]);
/// ```
#[macro_export]
macro_rules! choice_of_rows {
    ($of:ident, $noun:literal, $rows:expr) => {
        impl $crate::choice::Choice for $of {
            const NOUN: &'static str = $noun;
            const ALL: &'static [Self] = $rows;

            fn name_of(self) -> &'static str {
                self.0.name
            }

            fn means(self) -> &'static str {
                self.0.means
            }
        }

        impl PartialEq for $of {
            fn eq(&self, other: &Self) -> bool {
                self.0.name == other.0.name
            }
        }

        $crate::choice_text!($of);
    };
}

/// What [`choice!`](crate::choice!) gives beside the trait, for a type that implements [`Choice`] by hand.
#[macro_export]
macro_rules! choice_text {
    ($of:ident) => {
        impl ::std::fmt::Display for $of {
            fn fmt(&self, f: &mut ::std::fmt::Formatter) -> ::std::fmt::Result {
                f.write_str($crate::choice::Choice::name_of(*self))
            }
        }

        impl ::std::str::FromStr for $of {
            type Err = $crate::error::Error;

            fn from_str(s: &str) -> $crate::error::Result<Self> {
                $crate::choice::Choice::named(s)
            }
        }

        $crate::serde_as_text!($of);

        impl ::schemars::JsonSchema for $of {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> ::std::borrow::Cow<'static, str> {
                stringify!($of).into()
            }

            fn json_schema(_: &mut ::schemars::SchemaGenerator) -> ::schemars::Schema {
                $crate::choice::schema::<Self>()
            }
        }

        impl $of {
            /// Its name.
            pub fn name(self) -> &'static str {
                $crate::choice::Choice::name_of(self)
            }
        }
    };
}

/// Implements serde for a type by its `Display` and its `FromStr`.
#[macro_export]
macro_rules! serde_as_text {
    ($of:ident) => {
        impl ::serde::Serialize for $of {
            fn serialize<S: ::serde::Serializer>(&self, to: S) -> ::std::result::Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $of {
            fn deserialize<D: ::serde::Deserializer<'de>>(from: D) -> ::std::result::Result<Self, D::Error> {
                let text = <::std::borrow::Cow<str> as ::serde::Deserialize>::deserialize(from)?;
                text.parse().map_err(::serde::de::Error::custom)
            }
        }
    };
}
