package tallygate

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"time"
)

const (
	firstPause   = 20 * time.Millisecond
	longestPause = time.Second
	// A response must be complete within this time.
	responseTime     = 30 * time.Second
	responseBytesMax = 16 << 20
	headBytesMax     = 64 << 10
)

type call struct {
	method, path string
	header       map[string]string
	body         any
}

// Mistakes of the caller, such as a count that JSON cannot express, are errors here.
func (c call) encode(ctx context.Context) (*http.Request, error) {
	var body io.Reader
	if c.body != nil {
		text, err := json.Marshal(c.body)
		if err != nil {
			return nil, &Error{Code: "BAD_JSON", Message: err.Error(), Retry: RetryNo}
		}
		body = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, c.method, "http://localhost"+c.path, body)
	if err != nil {
		return nil, &Error{Code: "BAD_REQUEST", Message: err.Error(), Retry: RetryNo}
	}
	request.Header.Set("Content-Type", "application/json")
	for name, value := range c.header {
		request.Header.Set(name, value)
	}
	return request, nil
}

type response struct {
	status  int
	header  http.Header
	text    []byte
	isFirst bool // of the first attempt
}

func (r response) decode(into any) error {
	if json.Unmarshal(r.text, into) != nil {
		return unexpected(r.status, string(r.text))
	}
	return nil
}

func (r response) refusal() (code, message string) {
	var body struct {
		Code    string
		Message *string
	}
	if json.Unmarshal(r.text, &body) == nil && body.Code != "" && body.Message != nil {
		return body.Code, *body.Message
	}
	err := unexpected(r.status, string(r.text))
	return err.Code, err.Message
}

func unexpected(status int, text string) *Error {
	message := fmt.Sprintf("The response is not from a Tallygate agent (HTTP status %d: %.200s). Check the path of the socket.", status, text)
	return &Error{Code: "ANSWER_UNEXPECTED", Message: message, Retry: RetryNo}
}

// False: the agent does not say that the same request can be repeated.
func (r response) retryAfter() (time.Duration, bool) {
	seconds, err := strconv.ParseUint(r.header.Get("Retry-After"), 10, 30)
	return time.Duration(seconds) * time.Second, err == nil
}

// Zero: no heartbeats are needed.
func (r response) heartbeat() time.Duration {
	ms, _ := strconv.Atoi(r.header.Get("X-Tallygate-Heartbeat-Ms"))
	return time.Duration(ms) * time.Millisecond
}

// Denied session requests have the status 403 and the body of a decision.
func (r response) isDecision() bool {
	return isSuccess(r.status) || r.status == http.StatusForbidden && bytes.Contains(r.text, []byte(`"requestedItems"`))
}

// The agent says that the same request can be repeated. Limits are left to the application.
func (r response) isTemporary() bool {
	code, _ := r.refusal()
	_, isTemporary := r.retryAfter()
	return isTemporary && code != "CALLER_LIMITED"
}

// A connection serves one request at a time, and numbers its requests under a UUID.
type connection struct {
	socket   string
	patience time.Duration
	http     *http.Client
	name     string
	sent     int
	isInHead atomic.Bool // of a response
}

// net/http also accepts folded headers, and lines of a head that end without CR. The other clients refuse them.
type strictConn struct {
	net.Conn
	isInHead *atomic.Bool
	last     [4]byte
}

func (c *strictConn) Read(into []byte) (int, error) {
	n, err := c.Conn.Read(into)
	for _, each := range into[:n] {
		if !c.isInHead.Load() {
			break
		}
		copy(c.last[:], c.last[1:])
		c.last[3] = each
		isFolded := c.last[2] == '\n' && (each == ' ' || each == '\t')
		if isFolded || each == '\n' && c.last[2] != '\r' {
			return 0, errors.New("not an HTTP response")
		}
		if string(c.last[:]) == "\r\n\r\n" {
			c.isInHead.Store(false)
		}
	}
	return n, err
}

func newConnection(socket string, patience time.Duration) *connection {
	c := &connection{socket: socket, patience: patience, name: newUUID()}
	var dialer net.Dialer
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, "unix", socket)
			if err != nil {
				return nil, err
			}
			return &strictConn{Conn: conn, isInHead: &c.isInHead}, nil
		},
		MaxConnsPerHost:        1,
		MaxResponseHeaderBytes: headBytesMax,
		DisableCompression:     true,
	}
	c.http = &http.Client{
		Transport:     transport,
		Timeout:       responseTime,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c
}

// Takes effect at most once, however often it is sent.
func (c *connection) once(ctx context.Context, request call) (response, error) {
	c.sent++
	header := map[string]string{"X-Tallygate-Session": c.name, "X-Tallygate-Request": strconv.Itoa(c.sent)}
	for name, value := range request.header {
		header[name] = value
	}
	request.header = header
	decided, err := c.call(ctx, request)
	if errors.Is(err, ErrUnreachable) || ctx.Err() != nil {
		// The agent may still be deciding this request, and takes no further number until then.
		c.name, c.sent = newUUID(), 0
	}
	return decided, err
}

// Repeats until there is a decision or the patience ends.
func (c *connection) call(ctx context.Context, request call) (response, error) {
	sent, err := request.encode(ctx)
	if err != nil {
		return response{}, err
	}
	deadline := time.Now().Add(c.patience)
	isLost := false
	for pause, isFirst := firstPause, true; ; pause, isFirst = min(2*pause, longestPause), false {
		received, err := c.send(sent)
		if err == nil && received.isDecision() {
			received.isFirst = isFirst
			return received, nil
		}
		if ctx.Err() != nil {
			return response{}, ctx.Err()
		}
		var refused *Error
		if errors.As(err, &refused) {
			return response{}, refused
		}
		// systemd creates a socket before it sets its group: after another failure, a missing permission may end soon.
		mayRepeat := err == nil && received.isTemporary() || err != nil && !(isFirst && errors.Is(err, os.ErrPermission))
		if !mayRepeat || time.Now().Add(pause).After(deadline) {
			if err != nil {
				return response{}, unreachable(c.socket, err)
			}
			refusal := refusalOf(received)
			if isLost && refusal.Retry == RetryLater {
				// An agent that refuses for the moment does not look whether the lost attempt was charged.
				refusal.kind = ErrUnreachable
			}
			return response{}, refusal
		}
		isLost = isLost || err != nil
		select {
		case <-ctx.Done():
			return response{}, ctx.Err()
		case <-time.After(pause):
		}
	}
}

func (c *connection) send(sent *http.Request) (response, error) {
	if sent.GetBody != nil {
		sent.Body, _ = sent.GetBody()
	}
	c.isInHead.Store(true)
	received, err := c.http.Do(sent)
	if err != nil {
		return response{}, err
	}
	defer received.Body.Close()
	if received.StatusCode == http.StatusSwitchingProtocols {
		return response{}, errors.New("not an HTTP response")
	}
	// The agent always sends a length. Without it, a response that was cut looks complete.
	if received.ContentLength < 0 {
		return response{}, unexpected(received.StatusCode, "no Content-Length")
	}
	if received.ContentLength > responseBytesMax {
		return response{}, unexpected(received.StatusCode, "longer than 16 MiB")
	}
	text, err := io.ReadAll(received.Body)
	return response{status: received.StatusCode, header: received.Header, text: text}, err
}

func (c *connection) heartbeat(ctx context.Context, sessionID string) error {
	_, err := c.call(ctx, call{method: "GET", path: "/v1.1/sessions/" + sessionID + "/heartbeat"})
	return err
}

func (c *connection) close() { c.http.CloseIdleConnections() }

func min(a, b time.Duration) time.Duration {
	if a < b {
		return a
	}
	return b
}

func newUUID() string {
	var b [16]byte
	if _, err := rand.Read(b[:]); err != nil {
		panic(err) // the system has no randomness
	}
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
