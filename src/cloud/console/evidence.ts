/** What the cloud decided about the epochs of a device, and why: forks, contested use, and settlement after silence. */
import { tokensInWords } from '../../core/accounts/in-words.ts'
import { type Html, html } from '../../html/html.ts'
import { section } from '../../html/section.ts'
import type { Device, Epoch, Evidence, FenceReason, Settlement } from '../storage/device-records.ts'
import { type View, numeric, tableOf, timeOf } from './page.ts'

const EPOCHS_SHOWN = 10
const SEGMENTS_SHOWN = 20
const DELIVERIES_SHOWN = 20
const RECORDS_SHOWN = 50

const FENCED_TEXT: Readonly<Record<FenceReason, string>> = {
  SUPERSEDED: 'the device attached again',
  FORKED: 'two writers used the identity of this device: a copy, or a restored backup',
  REJECTED: 'a segment contradicted itself or its grants',
  REVOKED: 'the key was revoked',
  SILENT: 'the device did not report for too long',
  TERMINATED: 'an administrator ended the service',
}

const SETTLED_TEXT: Readonly<Record<Settlement, string>> = {
  CHARGED: 'its unreported tokens count as used, until reports show otherwise',
  RELEASED: 'its unreported tokens returned to the pool, although they may have been used',
}

const KIND_TEXT: Readonly<Record<Evidence['kind'], string>> = {
  FORK: 'contradicts a segment that was merged before',
  REJECTED: 'was not merged',
  UNDELIVERED_RANGE: 'has entries that were never delivered otherwise',
}

export async function evidencePart(view: View, device: Device): Promise<Html> {
  const { reader, now } = view
  const epochs = await reader.edge.epochs.newest(device.id, EPOCHS_SHOWN + 1)
  const segments = await reader.edge.evidence.of(device.id, SEGMENTS_SHOWN + 1)
  const contested = await reader.usage.ofBranches(device.id, DELIVERIES_SHOWN)
  const epochRows = epochs
    .slice(0, EPOCHS_SHOWN)
    .map((epoch) => [
      String(epoch.number),
      timeOf(epoch.createdAt, now),
      epoch.status.toLowerCase(),
      whyFenced(view, epoch),
      epoch.settlement === null ? 'none' : html`${SETTLED_TEXT[epoch.settlement]}, ${timeOf(epoch.settledAt, now)}`,
    ])
  return section(
    'evidence',
    'Epochs and evidence',
    html`${tableOf('Epochs', ['Epoch', 'Began', 'State', 'Fenced because', 'Settlement'], epochRows)}
    ${cutNote(epochs, EPOCHS_SHOWN)}
    ${segments.length === 0 ? html`<p class="soft">No segment contradicts another one.</p>` : segmentsTable(view, segments)}
    ${contested.length === 0 ? '' : contestedTable(view, contested)}`,
  )
}

/** Names the limit of a table that has reached it. */
function cutNote(found: readonly unknown[], shown: number): Html | '' {
  return found.length > shown ? html`<p class="soft">The newest ${shown} are shown.</p>` : ''
}

function whyFenced({ now }: View, { fenceReason, fencedAt }: Epoch): Html {
  if (fenceReason === null) return html`not fenced`
  return html`${FENCED_TEXT[fenceReason]}, ${timeOf(fencedAt, now)}`
}

function segmentsTable({ now }: View, segments: readonly Evidence[]): Html {
  const rows = segments
    .slice(0, SEGMENTS_SHOWN)
    .map(({ epoch, seq, kind, problem, hash, recordedHash, receivedAt }) => [
      html`epoch ${epoch}, segment ${seq}`,
      timeOf(receivedAt, now),
      html`${KIND_TEXT[kind]}${problem === null ? '' : `: ${problem}`}`,
      html`<code>${hash}</code>`,
      recordedHash === null ? 'none' : html`<code>${recordedHash}</code>`,
    ])
  return html`<h3>Segments that the cloud keeps as evidence</h3>
    ${tableOf('Segments', ['Segment', 'Received', 'What it shows', 'Its hash', 'Hash of the merged one'], rows)}
    ${cutNote(segments, SEGMENTS_SHOWN)}
    <p class="soft">
      Run <code>tallygate verify</code> on the device and on the possible copy: it names the segments of its ledger by
      these hashes.
    </p>`
}

type Contested = Awaited<ReturnType<View['reader']['usage']['ofBranches']>>

function contestedTable({ now }: View, contested: Contested): Html {
  const rows = contested
    .slice(0, RECORDS_SHOWN)
    .map(({ usageTime, requesterType, requesterValue, item, tokens: used, source, correlationId }) => [
      timeOf(usageTime, now),
      `${requesterType} ${requesterValue}`,
      item,
      tokensInWords(used),
      source.kind === 'device' ? `epoch ${source.epoch}, entry ${source.entry}` : source.kind,
      html`<code>${correlationId}</code>`,
    ])
  const columns = ['When', 'Requester', 'Item', numeric('Tokens'), 'Entry', 'Correlation id']
  return html`<h3>Use that another writer of this device reported</h3>
    ${tableOf('Contested use', columns, rows)} ${cutNote(contested, RECORDS_SHOWN)}
    <p class="soft">
      The cloud billed it. <code>tallygate explain</code> with the correlation id shows on that writer why it was
      granted.
    </p>`
}
