// Creates the secrets of the compose file once, in the volume that its services share. Runs before they start.
import { pbkdf2Sync, randomBytes } from 'node:crypto'
import { chmodSync, existsSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

const [folder = '/secrets'] = process.argv.slice(2)

/** Never replaces a file: the servers keep what they were started with first. */
function write(name, text) {
  const path = join(folder, name)
  if (existsSync(path)) return
  writeFileSync(`${path}.new`, `${text}\n`)
  // The users inside of the containers differ, and each container mounts this volume read-only.
  chmodSync(`${path}.new`, 0o644)
  renameSync(`${path}.new`, path)
}

const secret = () => randomBytes(24).toString('hex')

/** As mosquitto_passwd writes it. */
function mosquittoHash(password) {
  const salt = randomBytes(12)
  const hash = pbkdf2Sync(password, salt, 101, 64, 'sha512')
  return `$7$101$${salt.toString('base64')}$${hash.toString('base64')}`
}

write('db-password', secret())
write('grafana-password', secret())
if (!existsSync(join(folder, 'mqtt-password'))) {
  const password = secret()
  rmSync(join(folder, 'mosquitto-passwords'), { force: true })
  write('mosquitto-passwords', `twin:${mosquittoHash(password)}`)
  // Last: it says that both are there.
  write('mqtt-password', password)
}
