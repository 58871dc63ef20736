/** The inputs of a form with what was typed. Each is linked to its problems, and they to it. */
import { type Html, formValue, html } from '../../html/html.ts'
import { INSTANT_MAX } from '../../protocol/wire.ts'
import { option } from './page.ts'

export type Fields = Readonly<Record<string, string>>

export interface Problem {
  /** Name of the input. Null: of the form as a whole. */
  readonly field: string | null
  readonly text: string
}

/** Nothing of the form is saved. */
export class FormRefused extends Error {
  readonly problems: readonly Problem[]

  constructor(problems: readonly Problem[]) {
    super('The form has problems.')
    this.problems = problems
  }
}

interface Field {
  readonly name: string
  readonly label: string
  /** In a table, whose column has the visible label. */
  readonly isCell?: true
}

export const NO_INSTANT = 'must be a time from 1970 to 9999, such as 2026-05-01T08:00'

/** To the millisecond, as the API. */
export const TIME = html`type="datetime-local" step="0.001"`

export const NO_NUMBER = 'must be a number in digits, such as 1000'

/** Of an input of the type datetime-local, in UTC, POSIX ms. Undefined: it is no time, or the API does not take it. */
export function instantIn(text: string): number | undefined {
  const at = Date.parse(`${text}Z`)
  return at >= 0 && at <= INSTANT_MAX ? at : undefined
}

export class Inputs {
  readonly #fields: Fields
  readonly #problems: readonly Problem[]
  readonly #labels = new Map<string, string>()

  constructor(fields: Fields, problems: readonly Problem[] = []) {
    this.#fields = fields
    this.#problems = problems
  }

  value(name: string): string {
    return this.#fields[name] ?? ''
  }

  hidden(name: string): Html {
    return html`<input type="hidden" name="${name}" value="${formValue(this.value(name))}" />`
  }

  input(field: Field, type = html``): Html {
    const value = formValue(this.value(field.name))
    return this.#labeled(field, html`<input ${type} ${this.#links(field)} name="${field.name}" value="${value}" />`)
  }

  area(field: Field, type = html``): Html {
    const value = formValue(this.value(field.name))
    return this.#labeled(field, html`<textarea name="${field.name}" ${type} ${this.#links(field)}>${value}</textarea>`)
  }

  select(field: Field, choices: readonly (readonly [value: string, text: string])[]): Html {
    const options = choices.map(([value, text]) => option(value, text, this.value(field.name)))
    return this.#labeled(
      field,
      html`<select name="${field.name}" ${this.#links(field)}>
        ${options}
      </select>`,
    )
  }

  /** After the inputs: a problem names its input by the label. */
  problems(): Html | string {
    if (this.#problems.length === 0) return ''
    const shown = this.#problems.map(({ field, text }, at) => {
      const label = field === null ? undefined : this.#labels.get(field)
      const problem = label === undefined ? text : html`<a href="#field-${field ?? ''}">${label}: ${text}</a>`
      return html`<p id="problem-${at}">${problem}</p>`
    })
    return html`<div class="problem" role="alert">${shown}</div>`
  }

  #labeled({ label, isCell }: Field, control: Html): Html {
    return isCell === true ? control : html`<label>${label} ${control}</label>`
  }

  #links({ name, label, isCell }: Field): Html {
    this.#labels.set(name, label)
    const ids = this.#problems.flatMap(({ field }, at) => (field === name ? [`problem-${at}`] : []))
    const problem =
      ids.length === 0 ? '' : html`id="field-${name}" aria-invalid="true" aria-describedby="${ids.join(' ')}"`
    return html`${isCell === true ? html`aria-label="${label}"` : ''} ${problem}`
  }
}
