/** The pages of the reference: Scalar, which shows the documents, and the error codes. */
import { BASE_STYLE } from '../../../html/base-style.ts'
import { Html, html } from '../../../html/html.ts'
import { withCode } from '../../../html/with-code.ts'
import { type ErrorCode, ERRORS } from '../../../protocol/errors.ts'

export interface DocumentLink {
  readonly title: string
  /** Goes into the fragment of the page's URL. */
  readonly slug: string
  readonly url: string
}

export interface ReferencePlaces {
  readonly documents: readonly DocumentLink[]
  readonly scriptUrl: string
  readonly errorsUrl: string
}

/** Scalar reads its configuration from the element with the id `api-reference`. */
export function referencePage({ documents, scriptUrl, errorsUrl }: ReferencePlaces): string {
  const configuration = { ...CONFIGURATION, sources: documents }
  return page(
    'Tallygate: API reference',
    html`<div id="api-reference" data-configuration="${JSON.stringify(configuration)}"></div>
      <script src="${scriptUrl}"></script>
      <noscript>
        <main>
          <h1>Tallygate: API reference</h1>
          <p>The reference requires JavaScript. Without it, read the OpenAPI documents:</p>
          <ul>
            ${documents.map(({ title, url }) => html`<li><a href="${url}">${title}</a></li>`)}
            <li><a href="${errorsUrl}">Error codes</a></li>
          </ul>
        </main>
      </noscript>`,
  )
}

/** Everything that needs another server is off. The content security policy forbids it, too. */
const CONFIGURATION = {
  withDefaultFonts: false,
  telemetry: false,
  agent: { disabled: true },
  mcp: { disabled: true },
  hideClientButton: true,
  showDeveloperTools: 'never',
  persistAuth: false,
  operationTitleSource: 'summary',
  modelsSectionLabel: 'Schemas',
  // Its grays and greens have too little contrast for small text.
  customCss: `
    .light-mode{--scalar-color-2:#595959;--scalar-color-3:#666;--scalar-color-green:#05704b}
    .dark-mode{--scalar-color-3:#a4a4a4}`,
  metaData: { title: 'Tallygate: API reference' },
}

export function errorsPage(referenceUrl: string): string {
  const codes = (Object.keys(ERRORS) as ErrorCode[]).sort()
  return page(
    'Tallygate: error codes',
    html`<main>
      <p><a href="${referenceUrl}">API reference</a></p>
      <h1>Error codes</h1>
      <p>
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
                <td>${withCode(ERRORS[code].meaning)}</td>
                <td>${withCode(ERRORS[code].remedy)}</td>
                <td>${ERRORS[code].http}</td>
              </tr>`,
          )}
        </tbody>
      </table>
    </main>`,
    new Html(`<style>${STYLE}</style>`),
  )
}

/** @param style empty for Scalar, which has its own */
function page(title: string, body: Html, style: Html | string = ''): string {
  return html`<!doctype html>
    <html lang="en">
      <head>
        <meta charset="utf-8" />
        <meta name="viewport" content="width=device-width, initial-scale=1" />
        <title>${title}</title>
        <link rel="icon" href="data:," />
        ${style}
      </head>
      <body>
        ${body}
      </body>
    </html> `.text
}

const STYLE = `${BASE_STYLE}
main{max-width:64rem;margin:0 auto;padding:1rem;overflow-wrap:anywhere}
`
