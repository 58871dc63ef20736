/** Learns the cloud's new signing keys. A key is trusted only if a trusted key introduced it. */
import { keyIntroduction } from '../../protocol/edge/signing-keys.ts'
import { CodedError } from '../../protocol/errors.ts'
import type { PublicJwk } from '../../protocol/signing.ts'
import type { Cloud } from './cloud.ts'
import { type IdentityPlace, identityOf, saveIdentity } from './memory.ts'
import type { AgentLog } from './ports.ts'
import { Trust, distinctKeys } from '../keys/trust.ts'

interface KeyLearning extends IdentityPlace {
  readonly cloud: Pick<Cloud, 'signingKeys'>
  readonly log: AgentLog
  readonly signal: AbortSignal
}

export async function learnKeys({ cloud, journal, memory, log, signal }: KeyLearning): Promise<boolean> {
  const identity = identityOf(memory)
  const trustedKeys = await grown(identity.trustedKeys, await introductions())
  if (trustedKeys.length === identity.trustedKeys.length) return false
  const trust = await Trust.of(trustedKeys)
  // The suspension may have been stored in the meantime.
  await saveIdentity({ journal, memory }, { ...identityOf(memory), trustedKeys })
  memory.trust = trust
  log.info({ keys: trustedKeys.length }, 'the cloud signs with a new key that its previous key has signed')
  return true

  async function introductions(): Promise<readonly string[]> {
    try {
      return await cloud.signingKeys(identity, signal)
    } catch (error) {
      if (error instanceof CodedError) return []
      throw error
    }
  }
}

async function grown(trusted: readonly string[], documents: readonly string[]): Promise<readonly string[]> {
  let keys = trusted
  for (const document of documents) {
    const introduced = await (await Trust.of(keys)).read('key', document, keyIntroduction)
    if (introduced === undefined) continue
    const known = keys.map((text) => JSON.parse(text) as PublicJwk)
    keys = await distinctKeys([...known, introduced.introduces])
  }
  return keys
}
