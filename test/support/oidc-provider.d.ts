// The part of oidc-provider that the tests use; the package has no types.
declare module 'oidc-provider' {
  import type { RequestListener } from 'node:http'

  interface Context {
    readonly oidc?: { readonly route?: string }
    body: unknown
  }

  export default class Provider {
    constructor(issuer: string, configuration: object)
    use(middleware: (context: Context, next: () => Promise<void>) => Promise<void>): void
    callback(): RequestListener
  }
}
