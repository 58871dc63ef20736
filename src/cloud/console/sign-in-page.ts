import { Html, type Piece, html } from '../../html/html.ts'
import type { Page } from './page.ts'

/** The fragment never reaches a server or its log, and leaves the address bar and the history at once. */
export const SIGN_IN_SCRIPT = `
function signIn(){
  const code=location.hash.slice(1)
  if(code==='')return
  history.replaceState(null,'',location.pathname)
  document.getElementById('code').value=code
  document.getElementById('by-code').submit()
}
addEventListener('hashchange',signIn)
signIn()
`

export function signInPage(root: string, problems: readonly Piece[]): Page {
  const at = `${root}/sign-in`
  return {
    title: 'Sign in',
    content: html`${problems.map((problem) => html`<p class="problem" role="alert">${problem}</p>`)}
      <section aria-labelledby="cli">
        <h2 id="cli">With the command line</h2>
        <p>
          Run <code>tallygate console</code> where your administration key or your sign-in is, and open the URL that it
          prints.
        </p>
        <noscript><p>This needs a script of the page. Your browser runs none: use an access token.</p></noscript>
        <form id="by-code" method="post" action="${at}" hidden><input type="hidden" id="code" name="code" /></form>
      </section>
      <section aria-labelledby="token">
        <h2 id="token">With an access token</h2>
        <form method="post" action="${at}">
          <label>
            AdministrationAccess token, for example of
            <code>tallygate token --admin --key administration-key.pem</code>
            <input type="password" name="token" required autocomplete="off" size="40" />
          </label>
          <button>Sign in</button>
        </form>
      </section>
      ${new Html(`<script>${SIGN_IN_SCRIPT}</script>`)}`,
  }
}
