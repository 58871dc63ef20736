import { mosquitto } from '../../../support/servers.ts'
import { pushContract } from './mqtt-push.contract.ts'

const broker = mosquitto()

pushContract(() => broker.url)
