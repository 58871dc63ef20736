/**
 * Serves the console below `<prefix>/console`: pages without script, for administrators. A cookie holds the access token
 * of the sign-in; each request is authenticated with it like a call of the API.
 */
import { Readable } from 'node:stream'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { z } from 'zod'
import { CodedError, ERRORS, type ErrorCode } from '../../../protocol/errors.ts'
import { noInstance, requireDevice, requireSession } from '../../storage/require-record.ts'
import { USAGE_MEDIA_TYPES } from '../../../protocol/service/usage-export.ts'
import { uuidInLowerCase } from '../../../protocol/wire.ts'
import { type Piece, html } from '../../../html/html.ts'
import { withCode } from '../../../html/with-code.ts'
import { commandOf, commandedDevices, resultPieces } from '../../console/device-commands.ts'
import { type Edit, saveForm, withChange } from '../../console/edit.ts'
import type { Fields, Problem } from '../../console/inputs.ts'
import {
  type Page,
  type View,
  ROWS_SHOWN,
  contentPolicy,
  documentOf,
  errorHeaderOf,
  headerOf,
  hrefOf,
} from '../../console/page.ts'
import { deviceFilterOf } from '../../console/device-filter.ts'
import { EDITS, PAGES } from '../../console/pages.ts'
import { SESSION_COMMANDS, type SessionCommandName, confirmPage } from '../../console/sessions.ts'
import { SINK_COMMANDS, type SinkCommandName, commandSink } from '../../console/sinks.ts'
import { rangeOf, refusedUsagePage, usageOfPage, usagePage } from '../../console/usage.ts'
import { type ConsoleSignIn, formTokenOf } from '../../console/sign-in.ts'
import { SIGN_IN_SCRIPT, signInPage } from '../../console/sign-in-page.ts'
import { labelChangeOf, refusedLabelsPage } from '../../console/device.ts'
import { labelDevice } from '../../devices/label-device.ts'
import { type DeviceCommandDeps, actingOn, commandDevice } from '../../devices/command-device.ts'
import { DEVICE_MEDIA_TYPES, type DeviceFormat, exportDevices } from '../../devices/export-devices.ts'
import type { GiveWay } from '../../runtime/give-way.ts'
import type { Authenticator } from '../../service-api/authenticate.ts'
import type { Administrator } from '../../service-api/principal.ts'
import { commandSession } from '../../sessions/command-session.ts'
import type { SessionDeps } from '../../sessions/session-life.ts'
import { actingAs } from '../../storage/audit.ts'
import { exportUsage } from '../../usage/export-usage.ts'
import { newestUsage } from '../../usage/newest-usage.ts'
import type { Instance, NewestUsage } from '../../storage/records.ts'
import type { Reader, Store } from '../../storage/store.ts'
import { shownError } from '../answer-error.ts'
import { codesByStatus, declaredAnswers, errorCodes } from '../declared-answers.ts'
import { requireInstanceOf, requireRole, requireScope, requireUnlimited } from '../scope.ts'
import type { Slots } from '../slots.ts'

export interface ConsoleDeps extends Pick<View, 'policies' | 'presence' | 'sinks' | 'terms'> {
  readonly store: Store
  readonly signIn: Pick<ConsoleSignIn, 'redeem'>
  readonly authenticator: Authenticator
  readonly slots: Slots
  readonly sessions: SessionDeps
  readonly devices: DeviceCommandDeps
  readonly giveWay: GiveWay
  /** Name of the producer in usage records. */
  readonly tenantId: string
  /** Browsers reach the console by HTTPS only. */
  readonly isSecure: () => boolean
  /** The cell where rate tables are changed; null: this one. */
  readonly controlled: string | null
  /** Name of the cell that an account belongs to; null: this one. */
  readonly otherCellOf: (accountId: string) => Promise<string | null>
  readonly now: () => number
}

const COOKIE = 'tallygate_console'

const FORM_BYTES_MAX = 64 * 1024

/** The token, and who it is. */
interface SignedIn {
  readonly token: string
  readonly administrator: Administrator
}

export function registerConsole(http: FastifyInstance, prefix: string, deps: ConsoleDeps): void {
  const root = `${prefix}/console`
  const handlers = new Console(root, deps)
  void http.register(async (scope) => {
    // Browsers send forms only.
    scope.removeAllContentTypeParsers()
    scope.addContentTypeParser(
      'application/x-www-form-urlencoded',
      { parseAs: 'string', bodyLimit: FORM_BYTES_MAX },
      (_request, body, done) => done(null, Object.fromEntries(new URLSearchParams(String(body)))),
    )
    scope.addContentTypeParser('*', (_request, _body, done) => {
      done(new CodedError('CONSOLE_FORM_REFUSED', 'The body is no form: its Content-Type is another one.'))
    })
    scope.setErrorHandler((error, request, reply) => handlers.refuse(error, request, reply))
    const options = { config: { answers: ANSWERS } }
    scope.get(`${root}/sign-in`, options, (_request, reply) => handlers.showSignIn(reply, 200, []))
    scope.post(`${root}/sign-in`, options, (request, reply) => handlers.signIn(request, reply))
    scope.post(`${root}/sign-out`, options, (request, reply) => handlers.signOut(request, reply))
    for (const [path, make] of PAGES) {
      scope.get(`${root}${path}`, options, (request, reply) => handlers.show(make, request, reply))
    }
    for (const edit of EDITS) {
      scope.post(`${root}${edit.path}`, options, (request, reply) => handlers.edit(edit, request, reply))
    }
    scope.post(`${root}/devices/command`, options, (request, reply) => handlers.commandDevices(request, reply))
    scope.post(`${root}/devices/:deviceId/labels`, options, (request, reply) => handlers.labelDevice(request, reply))
    for (const format of Object.keys(DEVICE_MEDIA_TYPES) as DeviceFormat[]) {
      scope.get(`${root}/devices.${format}`, options, (request, reply) =>
        handlers.exportDevices(format, request, reply),
      )
    }
    scope.get(`${root}/*`, options, () => {
      throw new CodedError('NOT_FOUND', 'The console has no such page.')
    })
    scope.get(`${root}/usage`, options, (request, reply) => handlers.showUsage(request, reply))
    scope.get(`${root}/usage.csv`, options, (request, reply) => handlers.exportUsage(request, reply))
    for (const name of Object.keys(SESSION_COMMANDS) as SessionCommandName[]) {
      const url = `${root}/sessions/:sessionId/${name}`
      scope.get(url, options, (request, reply) => handlers.show((view) => confirmPage(view, name), request, reply))
      scope.post(url, options, (request, reply) => handlers.commandSession(name, request, reply))
    }
    for (const name of Object.keys(SINK_COMMANDS) as SinkCommandName[]) {
      scope.post(`${root}/sinks/:sink/${name}`, options, (request, reply) => handlers.commandSink(name, request, reply))
    }
  })
}

class Console {
  readonly #root: string
  readonly #deps: ConsoleDeps

  constructor(root: string, deps: ConsoleDeps) {
    this.#root = root
    this.#deps = deps
  }

  showSignIn(reply: FastifyReply, status: number, problems: readonly Piece[]): FastifyReply {
    return send(reply, status, documentOf(signInPage(this.#root, problems), null), SIGN_IN_SCRIPT)
  }

  async signIn(request: FastifyRequest, reply: FastifyReply): Promise<FastifyReply> {
    requireOwnPage(request)
    const { code, token } = fieldsOf(request.body)
    const now = this.#deps.now()
    const given = code === undefined ? (token ?? '').trim() : await this.#deps.signIn.redeem(code, now)
    await this.#authenticate(given)
    return reply.header('set-cookie', this.#cookie(given)).redirect(this.#root, SEE_OTHER)
  }

  /** Also of a sign-in that has expired or lost its role. */
  signOut(request: FastifyRequest, reply: FastifyReply): FastifyReply {
    requireForm(request, { token: tokenOf(request) })
    return reply.header('set-cookie', `${this.#cookie('')}; Max-Age=0`).redirect(`${this.#root}/sign-in`, SEE_OTHER)
  }

  async show(make: (view: View) => Promise<Page>, request: FastifyRequest, reply: FastifyReply): Promise<FastifyReply> {
    const { status, text } = await this.#render(make, request, await this.#signedIn(request, reply))
    return send(reply, status, text)
  }

  /** The search reads in steps, so that other reads need not wait for it. */
  async showUsage(request: FastifyRequest, reply: FastifyReply): Promise<FastifyReply> {
    const signedIn = await this.#signedIn(request, reply)
    const { store, giveWay } = this.#deps
    const view = await this.#viewOf(request, signedIn)
    const make = async (): Promise<Page> => {
      const wanted = await store.read((reader) => usageOfPage({ ...view, reader }))
      const read = (range: NewestUsage) => store.read(({ usage }) => usage.newest(range))
      const newest = await newestUsage({ read, giveWay }, wanted)
      return store.read((reader) => usagePage({ ...view, reader }, newest))
    }
    const page = await make().catch((error: unknown) => refusedUsagePage(view, error))
    return send(reply, page.status ?? 200, documentOf(page, headerOf(view)))
  }

  async commandSession(name: SessionCommandName, request: FastifyRequest, reply: FastifyReply): Promise<FastifyReply> {
    const { operator } = await this.#command(request, reply, true)
    const { store, sessions, now } = this.#deps
    const id = (fieldsOf(request.params)['sessionId'] ?? '').toLowerCase()
    const { instanceId } = await store.read((reader) => requireSession(reader, id))
    requireInstanceOf(operator, instanceId)
    const { command } = SESSION_COMMANDS[name]
    await commandSession({ ...sessions, store: actingAs(store, operator) }, { id, command }, now())
    const { instance } = fieldsOf(request.query)
    const chosen = instance === undefined ? '' : `?${new URLSearchParams({ instance }).toString()}`
    return reply.redirect(`${this.#root}/sessions${chosen}`, SEE_OTHER)
  }

  async commandSink(name: SinkCommandName, request: FastifyRequest, reply: FastifyReply): Promise<FastifyReply> {
    const needsConfirmation = SINK_COMMANDS[name].confirmed !== null
    const { signedIn, form, operator } = await this.#command(request, reply, needsConfirmation)
    requireUnlimited(operator)
    const { store, now } = this.#deps
    const sink = fieldsOf(request.params)['sink'] ?? ''
    await commandSink(actingAs(store, operator), { name, sink, after: form['after'] }, now())
    const view = await this.#viewOf(request, signedIn)
    return reply.redirect(hrefOf(view, name === 'forget' ? '/sinks' : `/sinks/${sink}`), SEE_OTHER)
  }

  async commandDevices(request: FastifyRequest, reply: FastifyReply): Promise<FastifyReply> {
    const { signedIn, form, operator } = await this.#command(request, reply, true)
    const { store, devices } = this.#deps
    const command = commandOf(fieldsOf(request.query)['command'])
    const run = async (deviceId: string): Promise<void> => {
      await requireScope(store, operator, [['body', 'deviceId']], { body: { deviceId } })
      await commandDevice(actingOn(devices, operator), command, deviceId)
    }
    const pieces = await store.read(async (reader) => {
      const view = await this.#view(reader, request, signedIn)
      return resultPieces(view, { command, devices: await commandedDevices(view, form['devices']), run })
    })
    return withHeaders(reply, 200).send(Readable.from(pieces))
  }

  async labelDevice(request: FastifyRequest, reply: FastifyReply): Promise<FastifyReply> {
    const { signedIn, form, operator } = await this.#command(request, reply, false)
    const { labels } = form
    const { store, devices } = this.#deps
    const deviceId = (fieldsOf(request.params)['deviceId'] ?? '').toLowerCase()
    await requireScope(store, operator, [['params', 'deviceId']], { params: { deviceId } })
    const device = await store.read((reader) => requireDevice(reader, deviceId))
    const view = await this.#viewOf(request, signedIn)
    try {
      await labelDevice(actingOn(devices, operator), deviceId, labelChangeOf(device, labels))
    } catch (error) {
      const page = refusedLabelsPage(view, device, labels ?? '', error)
      return send(reply, page.status ?? 400, documentOf(page, headerOf(view)))
    }
    return reply.redirect(hrefOf(view, `/devices/${deviceId}`), SEE_OTHER)
  }

  async edit(edit: Edit, request: FastifyRequest, reply: FastifyReply): Promise<FastifyReply> {
    const signedIn = await this.#signedIn(request, reply)
    requireOwnPage(request)
    const form = fieldsOf(request.body)
    const isOfSignIn = isForm(form, signedIn)
    if (isOfSignIn && edit.needsConfirmation) requireConfirmation(form)
    const editor = requireRole(signedIn.administrator, 'rules')
    const view = await this.#viewOf(request, signedIn)
    this.#requireConcerned(edit, editor, view.instance)
    const problems = isOfSignIn ? await this.#save(edit, form, editor, view.instance) : [OTHER_SIGN_IN]
    if (problems.length === 0) return reply.redirect(hrefOf(view, edit.next), SEE_OTHER)
    const refused = (current: View): Promise<Page> => edit.refused(current, form, withChange(problems, form, current))
    const { text } = await this.#render(refused, request, signedIn)
    return send(reply, isOfSignIn ? 400 : FORBIDDEN, text)
  }

  /** Returns what is wrong; nothing if it is saved. */
  async #save(edit: Edit, form: Fields, editor: Administrator, instance: Instance | null): Promise<readonly Problem[]> {
    const { store, now, sessions, devices, otherCellOf } = this.#deps
    const { id: instanceId = '' } = instance ?? {}
    const deps = {
      newId: sessions.newId,
      editor,
      otherCellOf,
      instanceId,
      store: actingAs(store, editor),
      now: now(),
      present: devices.present(),
    }
    return saveForm(edit, deps, form)
  }

  async exportDevices(format: DeviceFormat, request: FastifyRequest, reply: FastifyReply): Promise<FastifyReply> {
    const signedIn = await this.#signedIn(request, reply)
    const { store, presence, terms, now } = this.#deps
    const view = await this.#viewOf(request, signedIn)
    const pieces = exportDevices({ store, presence, terms, now }, deviceFilterOf(view).filter, format)
    return reply.headers(HEADERS).type(DEVICE_MEDIA_TYPES[format]).send(Readable.from(pieces))
  }

  async exportUsage(request: FastifyRequest, reply: FastifyReply): Promise<FastifyReply> {
    const signedIn = await this.#signedIn(request, reply)
    const { store, giveWay, tenantId } = this.#deps
    const { instance, query } = await this.#viewOf(request, signedIn)
    const range = { instanceId: instance?.id ?? null, ...rangeOf(query), after: null }
    const { pieces } = await exportUsage({ store, giveWay }, { format: 'csv', tenantId, ...range })
    return reply.headers(HEADERS).type(USAGE_MEDIA_TYPES.csv).send(Readable.from(pieces))
  }

  /** @throws CodedError NOT_FOUND, INSTANCE_NOT_IN_SCOPE, CELL_REQUIRED */
  #requireConcerned({ concerns }: Edit, editor: Administrator, instance: Instance | null): void {
    if (concerns === 'INSTANCE') {
      if (instance === null) throw new CodedError('NOT_FOUND', 'No instance is chosen.')
      requireInstanceOf(editor, instance.id)
      return
    }
    requireUnlimited(editor)
    const { controlled } = this.#deps
    if (concerns === 'ACCOUNT' || controlled === null) return
    throw new CodedError('CELL_REQUIRED', `Rate tables are changed in the console of the first cell, ${controlled}.`)
  }

  /** Asks for a sign-in if that could help. */
  refuse(error: unknown, request: FastifyRequest, reply: FastifyReply): void {
    const { status, headers, message, code } = shownError(error, request)
    void reply.headers(headers)
    const remedy = WITHOUT_REMEDY.has(code) ? '' : withCode(`${ERRORS[code].remedy} `)
    const problem = html`${message} ${remedy}(${code})`
    if (status === UNAUTHORIZED) {
      const { method, routeOptions } = request
      const isEdit = method === 'POST' && EDITS.some(({ path }) => routeOptions.url === `${this.#root}${path}`)
      // Its remedy is for programs; the page says how a person signs in.
      const isOver = code === 'TOKEN_NOT_IN_TIME' && routeOptions.url !== `${this.#root}/sign-in`
      const shown = code === 'TOKEN_MISSING' ? [] : [isOver ? `${SIGN_IN_OVER} (${code})` : problem]
      this.showSignIn(reply, status, isEdit ? [...shown, NOT_SAVED] : shown)
      return
    }
    const content = html`<p class="problem" role="alert">${problem}</p>`
    const token = cookieOf(request)
    const header = errorHeaderOf(this.#root, this.#pathOf(request), token === null ? null : formTokenOf(token))
    send(reply, status, documentOf({ title: 'This did not work', content }, header))
  }

  #pathOf({ routeOptions }: FastifyRequest): string {
    return (routeOptions.url ?? '').slice(this.#root.length)
  }

  async #signedIn(request: FastifyRequest, reply: FastifyReply): Promise<SignedIn> {
    const token = tokenOf(request)
    const administrator = await this.#deps.slots.authenticate(request.raw, () => this.#authenticate(token))
    this.#deps.slots.takeUntilClose(administrator, reply, false)
    return { token, administrator }
  }

  /** Form and sender of a command. @throws CodedError CONSOLE_FORM_REFUSED */
  async #command(request: FastifyRequest, reply: FastifyReply, needsConfirmation: boolean) {
    const signedIn = await this.#signedIn(request, reply)
    const form = requireForm(request, signedIn)
    if (needsConfirmation) requireConfirmation(form)
    return { signedIn, form, operator: requireRole(signedIn.administrator, 'operator') }
  }

  async #authenticate(token: string): Promise<Administrator> {
    const principal = await this.#deps.authenticator.authenticate(`Bearer ${token}`, this.#deps.now())
    if (principal.kind === 'ADMINISTRATOR') return requireRole(principal, 'read')
    throw new CodedError('CONSOLE_SIGN_IN_REFUSED', 'The console requires the token of an administrator.')
  }

  async #render(make: (view: View) => Promise<Page>, request: FastifyRequest, signedIn: SignedIn) {
    return this.#deps.store.read(async (reader) => {
      const view = await this.#view(reader, request, signedIn)
      const page = await make(view)
      return { status: page.status ?? 200, text: documentOf(page, headerOf(view)) }
    })
  }

  #cookie(token: string): string {
    const path = `Path=${this.#root}; HttpOnly; SameSite=Strict`
    return `${COOKIE}=${token}; ${path}${this.#deps.isSecure() ? '; Secure' : ''}`
  }

  /** @returns a view for links and headers: its reader has ended */
  #viewOf(request: FastifyRequest, signedIn: SignedIn): Promise<View> {
    return this.#deps.store.read((reader) => this.#view(reader, request, signedIn))
  }

  async #view(reader: Reader, request: FastifyRequest, { token, administrator }: SignedIn): Promise<View> {
    const { policies, presence, sinks, terms, now } = this.#deps
    const query = fieldsOf(request.query)
    const instances = await instancesOf(reader, administrator)
    const instance = await chosenInstance(reader, administrator, instances, query['instance'] ?? '')
    const revision = instance === null ? undefined : await reader.policyRevisions.get(instance.id)
    return {
      reader,
      policies,
      presence,
      sinks,
      terms,
      administrator,
      instances,
      instance,
      query,
      revision: revision?.revision ?? null,
      root: this.#root,
      path: this.#pathOf(request),
      params: fieldsOf(request.params),
      newId: this.#deps.sessions.newId,
      formToken: formTokenOf(token),
      now: now(),
    }
  }
}

/** Their remedies are for programs. */
const WITHOUT_REMEDY: ReadonlySet<ErrorCode> = new Set(['CONFLICT', 'NOT_FOUND'])

const SEE_OTHER = 303
const UNAUTHORIZED = 401
const FORBIDDEN = 403

const SIGN_IN_OVER = 'Your sign-in has expired. Sign in again.'
const NOT_SAVED = 'The form was not saved. Sign in in another tab, then reload this page to send it again.'
const OTHER_SIGN_IN = { field: null, text: 'The form belongs to an earlier sign-in. Check it, then save it again.' }

const PAGE = {
  description: 'A page, or an export.',
  body: z.unknown(),
  mediaType: 'text/html',
  streams: [USAGE_MEDIA_TYPES.csv, ...Object.values(DEVICE_MEDIA_TYPES), 'text/html'],
}
const MOVED = { description: 'The next page.' }
const REFUSALS = codesByStatus([...errorCodes('POST', []), 'NOT_FOUND', 'CONFLICT']).keys()

const ANSWERS = declaredAnswers(
  'POST',
  { 200: PAGE, [SEE_OTHER]: MOVED, ...Object.fromEntries([...REFUSALS].map((status) => [status, PAGE])) },
  [],
)

const HEADERS = { 'x-content-type-options': 'nosniff', 'referrer-policy': 'no-referrer', 'cache-control': 'no-store' }

function send(reply: FastifyReply, status: number, text: string, script?: string): FastifyReply {
  return withHeaders(reply, status, script).send(text)
}

function withHeaders(reply: FastifyReply, status: number, script?: string): FastifyReply {
  return reply
    .code(status)
    .headers({ ...HEADERS, 'content-security-policy': contentPolicy(script) })
    .type('text/html; charset=utf-8')
}

async function instancesOf(reader: Reader, { scope }: Administrator): Promise<readonly Instance[]> {
  if (scope === null) return reader.instances.list(0, ROWS_SHOWN)
  const found: Instance[] = []
  for (const id of [...scope].slice(0, ROWS_SHOWN)) {
    const instance = await reader.instances.get(id)
    if (instance !== undefined) found.push(instance)
  }
  return found
}

/** Null: all. @throws CodedError NOT_FOUND, INSTANCE_NOT_IN_SCOPE */
async function chosenInstance(
  reader: Reader,
  administrator: Administrator,
  instances: readonly Instance[],
  given: string,
): Promise<Instance | null> {
  if (given === '') {
    const [first] = instances
    if (first !== undefined && (instances.length === 1 || administrator.scope !== null)) return first
    requireUnlimited(administrator)
    return null
  }
  const id = uuidInLowerCase.safeParse(given).data ?? ''
  requireInstanceOf(administrator, id)
  const instance = await reader.instances.get(id)
  if (instance === undefined) throw noInstance(given)
  return instance
}

/** @throws CodedError TOKEN_MISSING */
function tokenOf(request: FastifyRequest): string {
  const token = cookieOf(request)
  if (token === null) throw new CodedError('TOKEN_MISSING', 'No administrator is signed in.')
  return token
}

function cookieOf({ headers }: FastifyRequest): string | null {
  for (const pair of (headers.cookie ?? '').split(';')) {
    const [name = '', value = ''] = pair.trim().split('=', 2)
    if (name === COOKIE && value !== '') return value
  }
  return null
}

/** Texts of a query, a form or a path. Several of one name are joined by commas. */
function fieldsOf(given: unknown): Fields {
  const entries = Object.entries((given ?? {}) as Readonly<Record<string, string | readonly string[]>>)
  return Object.fromEntries(entries.map(([name, value]) => [name, typeof value === 'string' ? value : value.join(',')]))
}

/** @throws CodedError CONSOLE_FORM_REFUSED for a form that another site sends */
function requireOwnPage({ headers }: FastifyRequest): void {
  const site = headers['sec-fetch-site']
  if (site === undefined || site === 'same-origin') return
  throw new CodedError('CONSOLE_FORM_REFUSED', 'The form comes from another site.')
}

function isForm(form: Fields, { token }: Pick<SignedIn, 'token'>): boolean {
  return form['formToken'] === formTokenOf(token)
}

/** @throws CodedError CONSOLE_FORM_REFUSED */
function requireForm(request: FastifyRequest, signedIn: Pick<SignedIn, 'token'>): Fields {
  requireOwnPage(request)
  const form = fieldsOf(request.body)
  if (isForm(form, signedIn)) return form
  throw new CodedError('CONSOLE_FORM_REFUSED', 'The form does not belong to this sign-in.')
}

/** @throws CodedError CONSOLE_FORM_REFUSED */
function requireConfirmation(form: Fields): void {
  if (form['confirmed'] === 'yes') return
  throw new CodedError('CONSOLE_FORM_REFUSED', 'The command was not confirmed.')
}
