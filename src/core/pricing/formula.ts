/**
 * Parses formulas of rate tables into a bounded tree; returns the first problem with its position, and never throws.
 * Names are those of the interface; precedence is that of spreadsheets: `-2^2` is 4, `2^3^2` is 64.
 *
 *   sum      := product (('+' | '-') product)*
 *   product  := power (('*' | '/') power)*
 *   power    := operand ('^' operand)*
 *   operand  := '-' operand | '(' sum ')' | number | variable | function '(' sum (',' sum)* ')'
 *   number   := digits ('.' digits)?
 *   variable := a letter or '_', then letters, digits and '_'; case does not matter
 */
import { type Ratio, decimal, decimalRatio } from './amount.ts'

export const FORMULA_LENGTH_MAX = 1_000
export const FORMULA_DEPTH_MAX = 32
export const FORMULA_NODES_MAX = 128
const NUMBER_DIGITS_MAX = 30
const NAME_LENGTH_MAX = 64

/** Numbers of arguments. Source: documentation on formula items. */
const ARITY = {
  'FLOOR.MATH': 1,
  'CEILING.MATH': 1,
  POWER: 2,
  PRODUCT: 2,
  SUM: 2,
  ABS: 1,
  MIN: 2,
  MAX: 2,
  ROUND: 2,
} as const

export type FormulaFunction = keyof typeof ARITY

export type Operation = FormulaFunction | 'SUBTRACT' | 'DIVIDE' | 'NEGATE'

export type Expression =
  | { readonly kind: 'NUMBER'; readonly value: Ratio }
  /** In lower case. */
  | { readonly kind: 'VARIABLE'; readonly name: string }
  | { readonly kind: 'CALL'; readonly operation: Operation; readonly operands: readonly Expression[] }

/** `position` counts characters from 1; one past the end if the text is incomplete. */
export interface FormulaProblem {
  readonly position: number
  readonly problem: string
}

export type ParsedFormula = { readonly expression: Expression } | FormulaProblem

const BINARY: Readonly<Record<string, { readonly power: number; readonly operation: Operation } | undefined>> = {
  '+': { power: 1, operation: 'SUM' },
  '-': { power: 1, operation: 'SUBTRACT' },
  '*': { power: 2, operation: 'PRODUCT' },
  '/': { power: 2, operation: 'DIVIDE' },
  '^': { power: 3, operation: 'POWER' },
}

const VARIABLE = /^[a-z_][a-z0-9_]*$/

/** Normalized for lookup; undefined for an invalid name. */
export function variableName(text: string): string | undefined {
  const name = text.length <= NAME_LENGTH_MAX ? asciiLowerCase(text) : ''
  return VARIABLE.test(name) ? name : undefined
}

/** Only A to Z: lower-casing other letters may leave or enter the alphabet. */
function asciiLowerCase(text: string): string {
  return text.replace(/[A-Z]/g, (letter) => letter.toLowerCase())
}

export function parseFormula(text: string): ParsedFormula {
  if (text.length > FORMULA_LENGTH_MAX) {
    return { position: FORMULA_LENGTH_MAX + 1, problem: `a formula has at most ${FORMULA_LENGTH_MAX} characters` }
  }
  const tokens = tokenize(text)
  return 'problem' in tokens ? tokens : new Parser(tokens.tokens).whole()
}

interface Token {
  readonly kind: 'NUMBER' | 'NAME' | 'SIGN' | 'END'
  readonly text: string
  readonly position: number
}

const SPACE = /[ \t\r\n]*/y
const LEXEME = /(\d+(?:\.\d+)?)|([A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*)|([-+*/^(),])/y

function tokenize(text: string): { readonly tokens: readonly Token[] } | FormulaProblem {
  const tokens: Token[] = []
  let at = 0
  for (;;) {
    SPACE.lastIndex = at
    SPACE.exec(text)
    at = SPACE.lastIndex
    const position = at + 1
    if (at >= text.length) return { tokens: [...tokens, { kind: 'END', text: '', position }] }
    LEXEME.lastIndex = at
    const match = LEXEME.exec(text)
    if (match === null) return { position, problem: 'this character has no meaning in a formula' }
    const [lexeme, number, name] = match
    tokens.push({
      kind: number === undefined ? (name === undefined ? 'SIGN' : 'NAME') : 'NUMBER',
      text: lexeme,
      position,
    })
    at += lexeme.length
  }
}

/** Ends a parse from any depth; never leaves this file. */
class Refusal extends Error {
  readonly problem: FormulaProblem

  constructor(problem: FormulaProblem) {
    super(problem.problem)
    this.problem = problem
  }
}

/** Precedence climbing. */
class Parser {
  readonly #tokens: readonly Token[]
  #next = 0
  #nodes = 0
  #depth = 0

  constructor(tokens: readonly Token[]) {
    this.#tokens = tokens
  }

  whole(): ParsedFormula {
    try {
      const expression = this.#operators(0)
      const rest = this.#peek()
      if (rest.kind !== 'END') this.#refuse(rest, 'an operator or the end is expected here')
      return { expression }
    } catch (error) {
      if (error instanceof Refusal) return error.problem
      throw error
    }
  }

  /** Operators that bind more tightly than `power`; equal ones group from the left. */
  #operators(power: number): Expression {
    let left = this.#operand()
    for (;;) {
      const token = this.#peek()
      const operator = token.kind === 'SIGN' ? BINARY[token.text] : undefined
      if (operator === undefined || operator.power <= power) return left
      this.#take()
      left = this.#node(token, {
        kind: 'CALL',
        operation: operator.operation,
        operands: [left, this.#operators(operator.power)],
      })
    }
  }

  #operand(): Expression {
    const token = this.#take()
    this.#depth += 1
    if (this.#depth > FORMULA_DEPTH_MAX) this.#refuse(token, `a formula nests at most ${FORMULA_DEPTH_MAX} deep`)
    const operand = this.#operandAt(token)
    this.#depth -= 1
    return operand
  }

  #operandAt(token: Token): Expression {
    if (token.kind === 'NUMBER') {
      if (token.text.length > NUMBER_DIGITS_MAX) this.#refuse(token, `a number has at most ${NUMBER_DIGITS_MAX} digits`)
      return this.#node(token, { kind: 'NUMBER', value: decimalRatio(decimal(token.text)) })
    }
    if (token.kind === 'NAME') return this.#named(token)
    if (token.text === '-') {
      return this.#node(token, { kind: 'CALL', operation: 'NEGATE', operands: [this.#operand()] })
    }
    if (token.text === '(') {
      const inner = this.#operators(0)
      this.#close()
      return inner
    }
    return this.#refuse(token, 'a number, a variable, a function or "(" is expected here')
  }

  #named(token: Token): Expression {
    const named = functionOf(token.text)
    const called = this.#peek().text === '('
    if (named === undefined) {
      if (called) this.#refuse(token, 'there is no function of this name')
      const name = variableName(token.text)
      if (name === undefined) this.#refuse(token, 'a variable is named by up to 64 letters, digits and "_"')
      return this.#node(token, { kind: 'VARIABLE', name })
    }
    if (!called) this.#refuse(token, `${named} is a function: its arguments are missing`)
    this.#take()
    const operands = [this.#operators(0)]
    while (this.#peek().text === ',') {
      this.#take()
      operands.push(this.#operators(0))
    }
    this.#close()
    const wanted = ARITY[named]
    if (operands.length !== wanted)
      this.#refuse(token, `${named} takes ${wanted === 1 ? 'one argument' : 'two arguments'}`)
    return this.#node(token, { kind: 'CALL', operation: named, operands })
  }

  #node(token: Token, expression: Expression): Expression {
    this.#nodes += 1
    if (this.#nodes > FORMULA_NODES_MAX) this.#refuse(token, `a formula has at most ${FORMULA_NODES_MAX} parts`)
    return expression
  }

  #close(): void {
    const token = this.#take()
    if (token.text !== ')') this.#refuse(token, '")" or an operator is expected here')
  }

  #peek(): Token {
    const token = this.#tokens[this.#next]
    if (token === undefined) throw new Error('invariant: nothing is taken after the end')
    return token
  }

  #take(): Token {
    const token = this.#peek()
    if (token.kind !== 'END') this.#next += 1
    return token
  }

  #refuse({ position }: Token, problem: string): never {
    throw new Refusal({ position, problem })
  }
}

function functionOf(text: string): FormulaFunction | undefined {
  const name = text.toUpperCase()
  return Object.hasOwn(ARITY, name) ? (name as FormulaFunction) : undefined
}
