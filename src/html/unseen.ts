/** Scripts in which a joiner changes how the letters beside it look. */
const JOINING = String.raw`\p{scx=Arab}\p{scx=Syrc}\p{scx=Nkoo}\p{scx=Mong}\p{scx=Deva}\p{scx=Beng}\p{scx=Guru}\p{scx=Gujr}\p{scx=Orya}\p{scx=Taml}\p{scx=Telu}\p{scx=Knda}\p{scx=Mlym}\p{scx=Sinh}\p{scx=Khmr}\p{scx=Mymr}`

/** Emoji, with what may follow them in one picture. */
const PICTURE = String.raw`\p{Extended_Pictographic}\p{Emoji_Modifier}\ufe0f`

/**
 * Characters that are invisible, control a terminal or change the direction of text: with them, one name could look like
 * another. Joiners and variation selectors are meant only where the character before them uses them.
 */
export const UNSEEN = new RegExp(
  [
    String.raw`(?<![${JOINING}${PICTURE}])[\u200c\u200d]`,
    String.raw`(?<![\p{Extended_Pictographic}\p{scx=Hani}\p{scx=Mymr}])[\ufe00-\ufe0f](?!\u20e3)`,
    // Forms of Chinese and Japanese characters, and of Mongolian letters.
    String.raw`(?<!\p{scx=Hani})[\u{e0100}-\u{e01ef}]`,
    String.raw`(?<!\p{scx=Mong})[\u180b-\u180d\u180f]`,
    // Signs of the scripts that stand before a number are formats, but visible.
    String.raw`[[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]--[\u200c\u200d\ufe00-\ufe0f\u{e0100}-\u{e01ef}\u180b-\u180d\u180f\u0600-\u0605\u06dd\u070f\u08e2]]`,
  ].join('|'),
  'gv',
)
