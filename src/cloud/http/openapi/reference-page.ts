/**
 * Renders an OpenAPI document as one self-contained page without script, image or font. Supports only features that
 * this project's documents use.
 */
import { type ErrorCode, ERRORS } from '../../../protocol/errors.ts'
import { Html, html, inline, prose } from './html.ts'
import { COMPONENTS, type Json, type JsonSchema } from './render-schema.ts'

export interface Link {
  readonly text: string
  readonly href: string
}

export function referencePage(document: JsonSchema, links: readonly Link[], errorsUrl: string): Html {
  const info = record(document['info'])
  const operations = Object.entries(record(document['paths'])).flatMap(([path, methods]) =>
    Object.entries(record(methods)).map(([method, operation]) => ({ method, path, operation: record(operation) })),
  )
  const components = record(document['components'])
  const responses = record(components['responses'])
  const schemas = Object.entries(record(components['schemas']))
  const tags = list(document['tags']).map((tag) => words(record(tag)['name']))
  const of = (tag: string) => operations.filter(({ operation }) => list(operation['tags']).includes(tag))
  const server = words(record(list(document['servers'])[0])['url'])
  return page(
    `${words(info['title'])} ${words(info['version'])}`,
    links,
    html`${prose(words(info['description']))}
      <p>Base path: <code>${server}</code>. Tokens go into the header <code>Authorization: Bearer …</code>.</p>
      <nav aria-label="Operations">
        ${tags.map(
          (tag) =>
            html`<h2>${tag}</h2>
              <ul>
                ${of(tag).map(
                  ({ method, path, operation }) =>
                    html`<li>
                      <a href="#${words(operation['operationId'])}">${words(operation['summary'])}</a>
                      ${signature(method, path)}
                    </li>`,
                )}
              </ul>`,
        )}
        <p><a href="#schemas">Schemas</a> · <a href="#tokens">Tokens</a></p>
      </nav>
      ${tags.map(
        (tag) =>
          html`<section>
            <h2>${tag}</h2>
            ${of(tag).map((found) => operationPart(found, responses, errorsUrl))}
          </section>`,
      )}
      <section id="tokens">
        <h2>Tokens</h2>
        <dl>
          ${Object.entries(record(components['securitySchemes'])).map(
            ([name, scheme]) =>
              html`<dt>${name}</dt>
                <dd>${inline(words(record(scheme)['description']))}</dd>`,
          )}
        </dl>
      </section>
      <section id="schemas">
        <h2>Schemas</h2>
        ${schemas.map(
          ([name, schema]) =>
            html`<article id="schema-${name}">
              <h3>${name}</h3>
              ${schemaPart(record(schema))}
            </article>`,
        )}
      </section>`,
  )
}

export function errorsPage(links: readonly Link[]): Html {
  const codes = (Object.keys(ERRORS) as ErrorCode[]).sort()
  return page(
    'Error codes',
    links,
    html`<p>
        Every error carries one of these codes, as <code>{"message": …, "code": …}</code> unless the API defines another
        body. A code keeps its meaning.
      </p>
      <table>
        <thead>
          <tr>
            <th scope="col">Code</th>
            <th scope="col">What happened</th>
            <th scope="col">What to do</th>
            <th scope="col">HTTP</th>
          </tr>
        </thead>
        <tbody>
          ${codes.map(
            (code) =>
              html`<tr id="${code}">
                <th scope="row"><code>${code}</code></th>
                <td>${inline(ERRORS[code].meaning)}</td>
                <td>${inline(ERRORS[code].remedy)}</td>
                <td>${ERRORS[code].http}</td>
              </tr>`,
          )}
        </tbody>
      </table>`,
  )
}

export function indexPage(links: readonly Link[]): Html {
  return page(
    'Tallygate: API reference',
    links,
    html`<ul>
      ${links.map(({ text, href }) => html`<li><a href="${href}">${text}</a></li>`)}
    </ul>`,
  )
}

interface Found {
  readonly method: string
  readonly path: string
  readonly operation: JsonSchema
}

function operationPart({ method, path, operation }: Found, shared: JsonSchema, errorsUrl: string): Html {
  const { summary, description, parameters, requestBody, responses, security } = operation
  const id = words(operation['operationId'])
  const tokens = list(security).flatMap((one) => Object.keys(record(one)))
  return html`<article id="${id}">
    <h3><a href="#${id}">${words(summary)}</a></h3>
    <p>${signature(method, path)}</p>
    ${description === undefined ? '' : prose(words(description))}
    <p>Token: ${tokens.map((name, index) => html`${index === 0 ? '' : ' or '}<a href="#tokens">${name}</a>`)}</p>
    ${parametersPart(list(parameters))}
    ${
      requestBody === undefined
        ? ''
        : html`<h4>Body</h4>
            ${contentPart(record(record(requestBody)['content']))}`
    }
    <h4>Responses</h4>
    <dl>
      ${Object.entries(record(responses)).map(([status, given]) => {
        const { $ref } = record(given)
        const response = record($ref === undefined ? given : shared[words($ref).split('/').at(-1) ?? ''])
        const text = withLinks(prose(words(response['description'])), errorsUrl)
        const isError = $ref !== undefined
        return html`<dt>${status}</dt>
          <dd>${text}${isError ? '' : contentPart(record(response['content']))}</dd>`
      })}
    </dl>
  </article>`
}

/** Links error codes to their meaning. */
function withLinks({ text }: Html, errorsUrl: string): Html {
  return new Html(
    text.replaceAll(/<code>([A-Z_]+)<\/code>/g, (whole, code: string) =>
      code in ERRORS ? html`<a href="${errorsUrl}#${code}">${new Html(whole)}</a>`.text : whole,
    ),
  )
}

function parametersPart(parameters: readonly Json[]): Html {
  if (parameters.length === 0) return html``
  return html`<h4>Parameters</h4>
    <table>
      <thead>
        <tr>
          <th scope="col">Name</th>
          <th scope="col">In</th>
          <th scope="col">Takes</th>
        </tr>
      </thead>
      <tbody>
        ${parameters.map((each) => {
          const { name, in: place, required, schema, description } = record(each)
          const needed = required === true ? ', required' : ''
          return html`<tr>
            <th scope="row"><code>${words(name)}</code></th>
            <td>${words(place)}${needed}</td>
            <td>
              ${typeOf(record(schema))}${description === undefined ? '' : html`<br />${inline(words(description))}`}
            </td>
          </tr>`
        })}
      </tbody>
    </table>`
}

function contentPart(content: JsonSchema): Html {
  return html`${Object.entries(content).map(([mediaType, form]) => {
    const { schema, example } = record(form)
    return html`<div><code>${mediaType}</code>: ${typeOf(record(schema))}</div>
      ${
        example === undefined
          ? ''
          : html`<details>
              <summary>Example</summary>
              <pre tabindex="0">${JSON.stringify(example, null, 2)}</pre>
            </details>`
      }`
  })}`
}

function schemaPart(schema: JsonSchema): Html {
  const description = schema['description'] === undefined ? html`` : prose(words(schema['description']))
  const properties = Object.entries(record(schema['properties']))
  if (properties.length === 0)
    return html`${description}
      <div>${typeOf(schema)}</div>`
  const required = list(schema['required'])
  return html`${description}
    <table>
      <thead>
        <tr>
          <th scope="col">Field</th>
          <th scope="col">Takes</th>
        </tr>
      </thead>
      <tbody>
        ${properties.map(([name, form]) => {
          const { description } = record(form)
          return html`<tr>
            <th scope="row"><code>${name}</code>${required.includes(name) ? '' : ' (optional)'}</th>
            <td>
              ${typeOf(record(form))}${description === undefined ? '' : html`<br />${inline(words(description))}`}
            </td>
          </tr>`
        })}
      </tbody>
    </table>`
}

/** Type of a schema, as a line or a nested list. */
function typeOf(schema: JsonSchema): Html {
  const { $ref, type, items, properties, prefixItems } = schema
  if ($ref !== undefined) {
    const name = words($ref).replace(COMPONENTS, '')
    return html`<a href="#schema-${name}">${name}</a>`
  }
  const choices = schema['anyOf'] ?? schema['oneOf']
  if (choices !== undefined)
    return html`one of
      <ul>
        ${list(choices).map((one) => html`<li>${typeOf(record(one))}</li>`)}
      </ul>`
  if (schema['allOf'] !== undefined) return html`${typeOf(record(list(schema['allOf'])[0]))}`
  if (prefixItems !== undefined) return html`array of one: ${typeOf(record(list(prefixItems)[0]))}`
  if (items !== undefined && items !== false) return html`array of ${typeOf(record(items))}${limits(schema)}`
  if (properties !== undefined) return html`object ${schemaPart({ ...schema, description: '' })}`
  if (schema['const'] !== undefined) return html`<code>${JSON.stringify(schema['const'])}</code>`
  if (schema['enum'] !== undefined) {
    return html`${list(schema['enum']).map((value, index) => html`${index === 0 ? '' : ', '}<code>${JSON.stringify(value)}</code>`)}`
  }
  return html`${list(type).length > 0 ? list(type).map(words).join(' or ') : words(type)}${limits(schema)}`
}

const LIMITS = {
  format: (value: string) => value,
  minimum: (value: string) => `≥ ${value}`,
  exclusiveMinimum: (value: string) => `> ${value}`,
  maximum: (value: string) => `≤ ${value}`,
  minLength: (value: string) => `${value} characters or more`,
  maxLength: (value: string) => `up to ${value} characters`,
  minItems: (value: string) => `${value} elements or more`,
  maxItems: (value: string) => `up to ${value} elements`,
  maxProperties: (value: string) => `up to ${value} fields`,
} as const

function limits(schema: JsonSchema): Html {
  const texts = Object.entries(LIMITS).flatMap(([key, say]) =>
    schema[key] === undefined ? [] : [say(words(schema[key]))],
  )
  return html`${texts.length === 0 ? '' : ` (${texts.join(', ')})`}`
}

function signature(method: string, path: string): Html {
  return html`<code><b>${method.toUpperCase()}</b> ${path}</code>`
}

function page(title: string, links: readonly Link[], body: Html): Html {
  return html`<!doctype html>
    <html lang="en">
      <head>
        <meta charset="utf-8" />
        <meta name="viewport" content="width=device-width, initial-scale=1" />
        <meta name="color-scheme" content="light dark" />
        <title>${title}</title>
        ${STYLE_ELEMENT}
      </head>
      <body>
        <a class="skip" href="#main">Skip to content</a>
        <header>
          <nav aria-label="Pages">${links.map(({ text, href }) => html`<a href="${href}">${text}</a> `)}</nav>
        </header>
        <main id="main">
          <h1>${title}</h1>
          ${body}
        </main>
      </body>
    </html> `
}

/** The style of every page; its hash is in the content security policy. */
export const STYLE = `
:root{color-scheme:light dark;--line:color-mix(in srgb,currentColor 20%,transparent)}
body{font:1rem/1.5 system-ui,sans-serif;margin:0 auto;max-width:64rem;padding:0 1rem 4rem}
header{padding:1rem 0;border-bottom:1px solid var(--line)}
header a{margin-right:1rem}
.skip{position:absolute;left:-99rem}
.skip:focus{left:1rem}
h2{margin-top:2.5rem}
article{border-top:1px solid var(--line);margin-top:1.5rem;overflow-wrap:anywhere}
table{border-collapse:collapse;width:100%}
th,td{border:1px solid var(--line);padding:.3rem .5rem;text-align:left;vertical-align:top;font-weight:normal}
dt{font-weight:bold;margin-top:.5rem}
dd{margin-left:1.5rem}
dd p,dd ul{margin:.2rem 0}
pre{overflow:auto;border:1px solid var(--line);padding:.5rem}
:target{outline:2px solid;outline-offset:.3rem}
a:focus-visible,summary:focus-visible,pre:focus-visible{outline:2px solid}
`

/** White space inside counts for the hash. */
const STYLE_ELEMENT = new Html(`<style>${STYLE}</style>`)

function record(value: Json | undefined): JsonSchema {
  return typeof value === 'object' && value !== null && !Array.isArray(value) ? (value as JsonSchema) : {}
}

function list(value: Json | undefined): readonly Json[] {
  return Array.isArray(value) ? (value as readonly Json[]) : []
}

function words(value: Json | undefined): string {
  return value === undefined ? '' : typeof value === 'string' ? value : JSON.stringify(value)
}
