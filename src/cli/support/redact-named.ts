/**
 * Replaces values with a secret's name, in any text: JSON in strings of JSON, TOML, YAML, XML, headers, queries, assignments
 * and options. One pass: the search continues behind each value.
 */

/** The end of a name, such as of PGPASSWORD, clientSecret or aws_secret_access_key. Not of `tokens` or `token_file`. */
const NAME =
  /(?:password|passwd|passphrase|passcode|pwd|pass|psk|secret|token|credentials?|authorization|cookie|(?:api|access|private|signing)[ _-]?key)(?:[_-]?(?:key|value))?\d*(?![\w-])/gi

/** Behind a name: the quote that closes it, and a sign. `password "x"` and `--password x` have neither. */
const BETWEEN = /(?<closing>\\*["'`])?(?<space>\s*)(?<sign>[:=]{0,2}>?)/y

/** Of a value. A quote in a string of JSON has backslashes. */
const OPENING = /\s*[bru]{0,2}(?<slashes>\\*)(?<quote>"""|'''|["'`])/iy

/** Of a member in JSON. */
const SCALAR = /\s*(?!(?:null|true|false)\b)(?<value>[^\s"',}\]\\]+)/y

/**
 * Behind a name that is itself a value: `{"name":"password","value":"x"}` or `<key>password</key><string>x`. Its match ends
 * before the value's quote or sign.
 */
const PAIR = /\\*["'`]?(?:\s*,)?\s*\\*["'`]?value(?=\\*["'`]?\s*[:=])|<\/\w{1,32}>\s{0,64}<\w{1,32}(?=>)/iy

/** Before a name that is itself a value, from behind the key `value`: `"x", "name": "`. */
const PAIR_BEFORE =
  /^\\*["'`]?\s*[:=]\s*\\*["'`]?(?<value>[^]*?)\\*["'`]?\s*,?\s*\\*["'`]?(?:name|key)\\*["'`]?\s*[:=]\s*\\*["'`]?[\w.-]*$/i

/** Of the text before a name in which its value is looked for. */
const BEFORE_MAX = 600

/** In an element of XML: from a name to the end of its tag. */
const ATTRIBUTES = /\s[^<>]{0,500}(?=>)/y

/** Of an element of XML. */
const ELEMENT_MAX = 4_096

/** The text of a line before a name, if nothing but a prefix of the name is there. */
const LINE_START = /^[ \t]*(?:export |- )*["']?[\w.-]*$/

/** The rest of a line of YAML whose value is in the lines below it. */
const BLOCK = /[ \t]*(?:[!&]\S{0,64}[ \t]+)?(?:[|>][-+\d]{0,2}[ \t]*)?(?:#.{0,80})?\n/y

interface Span {
  readonly begin: number
  readonly end: number
}

export function redactNamed(text: string, mark: string): string {
  let [clean, at] = ['', 0]
  const place = new Place(text)
  NAME.lastIndex = 0
  for (let name = NAME.exec(text); name !== null; name = NAME.exec(text)) {
    const value = valueBefore(text, name.index, at) ?? valueBehind(text, name, place.isInString(name.index))
    if (value === null || value.end === value.begin) continue
    clean += `${text.slice(at, value.begin)}${mark}`
    at = value.end
    NAME.lastIndex = Math.max(at, NAME.lastIndex)
  }
  return clean + text.slice(at)
}

/** Reads the text once. */
class Place {
  readonly #text: string
  #at = 0
  #isInString = false

  constructor(text: string) {
    this.#text = text
  }

  /** @param index not before that of the last call */
  isInString(index: number): boolean {
    for (; this.#at < index; this.#at += 1) {
      const sign = this.#text[this.#at]
      if (sign === '\n') this.#isInString = false
      if (sign === '"' && this.#text[this.#at - 1] !== '\\') this.#isInString = !this.#isInString
    }
    return this.#isInString
  }
}

/** @param from the text before it is clean */
function valueBefore(text: string, index: number, from: number): Span | null {
  const start = Math.max(from, index - BEFORE_MAX)
  const before = text.slice(start, index)
  if (!/(?:name|key)\\*["'`]?\s{0,8}[:=]\s{0,8}\\*["'`]?[\w.-]{0,64}$/i.test(before.slice(-100))) return null
  const key = before.toLowerCase().lastIndexOf('value')
  const behind = key + 'value'.length
  const { value = '' } = (key < 0 ? null : PAIR_BEFORE.exec(before.slice(behind)))?.groups ?? {}
  if (value === '' || /[{}]/.test(value)) return null
  const begin = start + before.indexOf(value, behind)
  return { begin, end: begin + value.length }
}

function valueBehind(text: string, { index, 0: name }: RegExpExecArray, isInString: boolean): Span | null {
  PAIR.lastIndex = index + name.length
  ATTRIBUTES.lastIndex = index + name.length
  const isTag = /<[\w:.-]{0,64}$/.test(text.slice(Math.max(0, index - 65), index))
  const behind = PAIR.test(text) ? PAIR.lastIndex : isTag && ATTRIBUTES.test(text) ? ATTRIBUTES.lastIndex : null
  const between = groupsAt(BETWEEN, text, behind ?? index + name.length)
  const { closing, space = '', sign = '' } = between ?? {}
  const from = BETWEEN.lastIndex
  if (sign === '>') return element(text, from) ?? word(text, from, { isInString })
  const opening = groupsAt(OPENING, text, from)
  const begin = OPENING.lastIndex
  // Otherwise the quote can be one behind a string that ends with the name.
  const isNear = sign !== '' || (closing === undefined && space !== '')
  if (opening !== null && isNear) {
    const { slashes = '', quote = '' } = opening
    const end = endOfString(text, begin, { slashes: slashes.length, quote })
    return { begin, end: sign === ':' && text[end] === '\n' ? continued(text, index, end) : end }
  }
  if (sign === '') return space !== '' && isOption(text, index) ? word(text, from, { isInString }) : null
  if (closing === undefined) {
    // `/etc/tallygate/enrollment-token: permission denied`.
    if (sign === ':' && text[from] === ' ' && isEndOfPath(text, index)) return null
    return block(text, index, from) ?? assigned(text, from, { index, isInString, sign })
  }
  return block(text, index, from) ?? list(text, from) ?? scalar(text, from)
}

/** A value without quotes behind a name without a quote behind it: `"PASSWORD=x y"`, `password = x y` or `password: x`. */
function assigned(text: string, from: number, name: { index: number; isInString: boolean; sign: string }): Span {
  const { index, isInString, sign } = name
  const { slashes = '', quote } =
    /(?<slashes>\\*)(?<quote>["'])[\w.-]{0,64}$/.exec(lineBefore(text, index))?.groups ?? {}
  if (sign === '=' && quote !== undefined) {
    return { begin: from, end: endOfString(text, from, { slashes: slashes.length, quote }) }
  }
  const isFirst = LINE_START.test(lineBefore(text, index))
  const { begin, end } = word(text, from, { isInString, isLine: sign === ':' || isFirst })
  return { begin, end: sign === ':' && isFirst ? continued(text, index, end) : end }
}

function lineBefore(text: string, index: number): string {
  const start = Math.max(0, index - 100)
  return text.slice(Math.max(start, text.lastIndexOf('\n', index - 1) + 1), index)
}

/** Of XML, up to the next tag. */
function element(text: string, begin: number): Span | null {
  const content = text.slice(begin, begin + ELEMENT_MAX)
  const end = content.startsWith('<![CDATA[') ? content.indexOf(']]>') : content.indexOf('<')
  return end < 0 ? null : { begin, end: begin + end }
}

/** Without quotes. In a string, a quote without backslashes ends it. No pattern: a long one would fill V8's stack. */
function word(text: string, from: number, { isInString = false, isLine = false }): Span {
  let begin = from
  while (text[begin] === ' ' || text[begin] === '\t') begin += 1
  let end = begin
  for (; end < text.length; end += 1) {
    const sign = text[end] ?? ''
    if (sign === '\n' || (!isLine && /\s/.test(sign))) break
    if (isInString && sign === '"' && text[end - 1] !== '\\') break
  }
  return { begin, end }
}

/** Of YAML: all lines below that are indented more than the name. */
function block(text: string, index: number, from: number): Span | null {
  BLOCK.lastIndex = from
  if (!BLOCK.test(text)) return null
  const begin = BLOCK.lastIndex
  const end = continued(text, index, begin - 1)
  return end < begin ? null : { begin, end }
}

/** The end of the lines of YAML that continue the value of a name. @param lineEnd of the line of the name */
function continued(text: string, index: number, lineEnd: number): number {
  const line = text.lastIndexOf('\n', index - 1) + 1
  const indent = indentAt(text, line)
  let end = lineEnd
  for (let next = end + 1; next < text.length;) {
    const stop = text.indexOf('\n', next)
    const nextEnd = stop === -1 ? text.length : stop
    const isBlank = text.slice(next, nextEnd).trim() === ''
    if (!isBlank && indentAt(text, next) <= indent) break
    end = nextEnd
    next = nextEnd + 1
  }
  return end
}

function indentAt(text: string, line: number): number {
  let at = line
  // The dash of a list, too: the next key of its element is below the first one.
  while (text[at] === ' ' || text[at] === '\t' || (text[at] === '-' && text[at + 1] === ' ')) at += 1
  return at - line
}

/** Whether the name is that of an option such as `--db-password`. */
function isOption(text: string, index: number): boolean {
  return /(?:^|\s)--?[\w.-]{0,64}$/.test(text.slice(Math.max(0, index - 66), index))
}

function isEndOfPath(text: string, index: number): boolean {
  return /[\s"'`(]\/[\w./-]{0,200}$/.test(text.slice(Math.max(0, index - 202), index))
}

interface Quote {
  /** Backslashes before it. */
  readonly slashes: number
  readonly quote: string
}

/** Where the closing quote begins, or one of a string that contains this one. Else the end of the line, or of the text. */
function endOfString(text: string, begin: number, { slashes, quote }: Quote): number {
  if (quote.length > 1) {
    const end = text.indexOf(quote, begin)
    return end < 0 ? text.length : end
  }
  for (let at = begin; at < text.length; at += 1) {
    if (text[at] === '\n') return at
    if (text[at] !== quote) continue
    const rest = slashesBefore(text, at, begin) % (2 * slashes + 2)
    if (rest <= slashes) return at - rest
  }
  return text.length
}

function slashesBefore(text: string, at: number, begin: number): number {
  let count = 0
  while (at - count > begin && text[at - count - 1] === '\\') count += 1
  return count
}

/** A list or object of JSON as a value. Other texts may not close it. */
function list(text: string, from: number): Span | null {
  let at = from
  while (text[at] === ' ') at += 1
  if (text[at] !== '{' && text[at] !== '[') return null
  const begin = at
  let depth = 0
  for (; at < text.length; at += 1) {
    const sign = text[at] ?? ''
    if ('{['.includes(sign)) depth += 1
    if (']}'.includes(sign)) depth -= 1
    if (depth === 0) return { begin, end: at + 1 }
    if (sign !== '"') continue
    const slashes = slashesBefore(text, at, begin)
    at = endOfString(text, at + 1, { slashes, quote: '"' }) + slashes
  }
  return { begin, end: text.length }
}

function scalar(text: string, from: number): Span | null {
  const { value } = groupsAt(SCALAR, text, from) ?? {}
  return value === undefined ? null : { begin: SCALAR.lastIndex - value.length, end: SCALAR.lastIndex }
}

/** @param pattern sticky. Its `lastIndex` is the end of the match. */
function groupsAt(pattern: RegExp, text: string, at: number): Readonly<Record<string, string>> | null {
  pattern.lastIndex = at
  return pattern.exec(text)?.groups ?? null
}
