package tallygate

import (
	"context"
	"errors"
	"regexp"
	"sync"
	"time"
)

// Session sends heartbeats until it is closed or ends.
type Session struct {
	ID   string
	conn *connection
	turn chan struct{} // has room for the one call at a time
	over context.Context
	stop context.CancelFunc

	mutex sync.Mutex
	every time.Duration // between heartbeats at most
	end   *Error
}

// OpenSession opens a session that ends when it is closed or its heartbeats stop.
func (c *Client) OpenSession(ctx context.Context, instanceID string) (*Session, error) {
	return c.open(ctx, instanceID, false)
}

// OpenBoundSession opens a session that ends with this process, and when the agent restarts.
func (c *Client) OpenBoundSession(ctx context.Context, instanceID string) (*Session, error) {
	return c.open(ctx, instanceID, true)
}

func (c *Client) open(ctx context.Context, instanceID string, bound bool) (*Session, error) {
	conn := newConnection(c.Socket, c.Patience)
	opening := call{method: "POST", path: "/v1.1/sessions", body: map[string]string{"instanceId": instanceID}}
	if bound {
		opening.header = map[string]string{"X-Tallygate-Bound": "connection"}
	}
	for deadline := time.Now().Add(c.Patience); ; {
		var body struct{ SessionID string }
		opened, err := conn.once(ctx, opening)
		if err == nil {
			err = opened.decode(&body)
		}
		if err == nil && !isID.MatchString(body.SessionID) {
			err = unexpected(opened.status, string(opened.text))
		}
		if err == nil && bound && !opened.isFirst {
			err = conn.heartbeat(ctx, body.SessionID)
			// If the response was lost, a session bound to that connection has ended: open another.
			if end := endOf(err); end != nil {
				if time.Now().Before(deadline) {
					continue
				}
				err = end
			}
		}
		if err != nil {
			conn.close()
			return nil, err
		}
		return newSession(conn, body.SessionID, opened.heartbeat()), nil
	}
}

// Ids become a part of paths.
var isID = regexp.MustCompile(`^[\w-]{1,36}$`)

func newSession(conn *connection, id string, every time.Duration) *Session {
	over, stop := context.WithCancel(context.Background())
	s := &Session{ID: id, conn: conn, turn: make(chan struct{}, 1), over: over, stop: stop, every: every}
	if every > 0 {
		go s.beat()
	}
	return s
}

// Request requests all items or none. Granted items replace the previous ones and are charged for each interval. After a
// refusal (Granted is false) the session continues unchanged.
func (s *Session) Request(ctx context.Context, requester Requester, items ...Item) (Answer, error) {
	return s.request(ctx, true, requester, items)
}

// RequestOrEnd is Request, except that a refusal ends the session.
func (s *Session) RequestOrEnd(ctx context.Context, requester Requester, items ...Item) (Answer, error) {
	return s.request(ctx, false, requester, items)
}

func (s *Session) request(ctx context.Context, rollback bool, requester Requester, items []Item) (Answer, error) {
	if items == nil {
		items = []Item{}
	}
	body := accessBody{Requester: requester, Items: items, RollbackOnDeny: &rollback}
	response, err := s.call(ctx, call{method: "PUT", path: s.path(), body: body})
	if err != nil {
		return Answer{}, err
	}
	return answerOf(response, items)
}

// Halt refunds the rest of the interval and charges nothing until the next request.
func (s *Session) Halt(ctx context.Context, requester Requester) error {
	_, err := s.Request(ctx, requester)
	return err
}

// State returns the session's state, such as ACTIVE.
func (s *Session) State(ctx context.Context) (string, error) {
	var body struct{ State string }
	response, err := s.call(ctx, call{method: "GET", path: s.path()})
	if err == nil {
		err = response.decode(&body)
	}
	if err == nil && body.State == "" {
		err = unexpected(response.status, string(response.text))
	}
	return body.State, err
}

// Done is closed when the session is closed or ends by itself: out of tokens, locked, or timed out.
func (s *Session) Done() <-chan struct{} { return s.over.Done() }

// End says how the session ended by itself. Nil: it did not.
func (s *Session) End() error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.end == nil {
		return nil
	}
	return s.end
}

// Close closes the session and refunds unused tokens. Closing an ended session is not an error.
func (s *Session) Close(ctx context.Context) error {
	s.stop()
	defer s.conn.close()
	_, err := s.call(ctx, call{method: "DELETE", path: s.path()})
	if errors.Is(err, ErrEnded) {
		return nil
	}
	return err
}

func (s *Session) path() string { return "/v1.1/sessions/" + s.ID }

func (s *Session) call(ctx context.Context, request call) (response, error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return response{}, ctx.Err()
	}
	send := s.conn.once
	if request.method == "GET" {
		send = s.conn.call
	}
	received, err := send(ctx, request)
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if every := received.heartbeat(); every > 0 {
		s.every = every
	}
	if end := endOf(err); end != nil {
		if s.over.Err() == nil {
			s.end = end
			s.stop()
		}
		return response{}, end
	}
	return received, err
}

func (s *Session) beat() {
	for {
		s.mutex.Lock()
		pause := s.every / 3 // two can be lost
		s.mutex.Unlock()
		select {
		case <-s.over.Done():
			return
		case <-time.After(pause):
			// An error means that it ended, as End says, or that there was no response, so the next one follows.
			_, _ = s.call(s.over, call{method: "GET", path: s.path() + "/heartbeat"})
		}
	}
}
