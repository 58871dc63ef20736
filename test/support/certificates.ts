// Certificates for servers of tests on 127.0.0.1, by an authority of the test: `openssl` of this machine makes them.
import { execFile } from 'node:child_process'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'

export interface Certified {
  /** PEM. */
  readonly certificate: string
  readonly key: string
}

const DAY_MS = 86_400_000
const NEW_KEY = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-nodes']

export class Authority implements AsyncDisposable {
  readonly #folder: string
  /** PEM: what has to be trusted. */
  readonly certificate: string
  #made = 0

  private constructor(folder: string, certificate: string) {
    this.#folder = folder
    this.certificate = certificate
  }

  static async make(): Promise<Authority> {
    const folder = await mkdtemp(join(tmpdir(), 'tallygate-authority-'))
    const settings = [
      '[ca]',
      'default_ca = all',
      '[all]',
      `database = ${folder}/index`,
      `new_certs_dir = ${folder}`,
      `certificate = ${folder}/ca.pem`,
      `private_key = ${folder}/ca.key`,
      'rand_serial = yes',
      'default_md = sha256',
      'policy = any',
      'unique_subject = no',
      'copy_extensions = copy',
      '[any]',
      'commonName = supplied',
      '',
    ]
    await writeFile(join(folder, 'settings'), settings.join('\n'))
    await writeFile(join(folder, 'index'), '')
    const files = ['-keyout', join(folder, 'ca.key'), '-out', join(folder, 'ca.pem')]
    await openssl(['req', '-x509', ...NEW_KEY, '-days', '2', '-subj', '/CN=authority of a test', ...files])
    return new Authority(folder, await readFile(join(folder, 'ca.pem'), 'utf8'))
  }

  /** @param untilMs POSIX ms; before now for one that has expired. It begins two days before that. */
  async certify(untilMs: number, host = 'localhost'): Promise<Certified> {
    const name = join(this.#folder, `server-${(this.#made += 1)}`)
    const [key, request, certificate] = [`${name}.key`, `${name}.csr`, `${name}.pem`]
    const address = ['-subj', '/CN=server', '-addext', `subjectAltName=IP:127.0.0.1,DNS:${host}`]
    await openssl(['req', ...NEW_KEY, ...address, '-keyout', key, '-out', request])
    const span = ['-startdate', asn1(untilMs - 2 * DAY_MS), '-enddate', asn1(untilMs)]
    const files = ['-in', request, '-out', certificate, '-config', join(this.#folder, 'settings')]
    await openssl(['ca', '-batch', '-notext', ...span, ...files])
    return { certificate: await readFile(certificate, 'utf8'), key: await readFile(key, 'utf8') }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await rm(this.#folder, { recursive: true, force: true })
  }
}

async function openssl(args: string[]): Promise<void> {
  await promisify(execFile)('openssl', args)
}

/** YYYYMMDDHHMMSSZ */
function asn1(instant: number): string {
  return `${new Date(instant).toISOString().replace(/[-:T]|\.\d+Z/g, '')}Z`
}
