//! `named_enum!`: enums whose variants have names in flags, files and reports.

/// Defines an enum of variants without fields and states the name of each beside it: the list of all, their names, and the search by
/// name follow from that.
///
/// ```
/// base::named_enum! {
///     /// A direction.
///     #[derive(Clone, Copy, Debug, PartialEq)]
///     pub enum Direction {
///         /// To the left.
///         Left = "left",
///         /// To the right.
///         Right = "right",
///     }
/// }
/// assert_eq!(Direction::from_name("right"), Some(Direction::Right));
/// assert_eq!(Direction::ALL.map(Direction::name), ["left", "right"]);
/// ```
#[macro_export]
macro_rules! named_enum {
    ($(#[$meta:meta])* pub enum $type:ident { $($(#[$docs:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$meta])*
        pub enum $type {
            $($(#[$docs])* $variant,)+
        }

        impl $type {
            /// All of them, in order.
            pub const ALL: [$type; [$($name),+].len()] = [$($type::$variant),+];

            /// The name in flags, files and reports.
            pub const fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $name,)+
                }
            }

            /// The one of this name.
            pub fn from_name(name: &str) -> Option<$type> {
                $type::ALL.into_iter().find(|known| known.name() == name)
            }
        }
    };
}
