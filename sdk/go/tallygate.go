// Package tallygate asks the Tallygate agent on this device for access, and keeps sessions, over the agent's Unix socket.
//
// A request without a response is repeated under the same number, also after a restart of the agent, so it is charged
// once. Sessions send their own heartbeats.
package tallygate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Retry says when the same request can succeed.
type Retry string

const (
	RetryNo     Retry = "no"     // not before something is changed
	RetryLater  Retry = "later"  // at another time
	RetryOnline Retry = "online" // once the device has reached the cloud
)

// Kinds of errors, for errors.Is.
var (
	// No response to an attempt until the patience ended, or no permission to connect. The request may have been charged.
	ErrUnreachable = errors.New("the agent does not respond")
	ErrNeedsCloud  = errors.New("the device must reach the cloud first")
	ErrLimit       = errors.New("this user has used up its limit")
	ErrEnded       = errors.New("the session has ended") // stop the work that it paid for
)

// Error is a refusal of the agent, or a missing response. Codes: docs/reference/errors.md.
type Error struct {
	Code       string
	Message    string
	Retry      Retry
	RetryAfter time.Duration // of ErrLimit
	State      string        // of ErrEnded: TERMINATED, LOCKED, FAILED, DISCONNECTED, or UNKNOWN to the agent
	kind       error
}

func (e *Error) Error() string { return e.Code + ": " + e.Message }

func (e *Error) Unwrap() error { return e.kind }

// Requester is the user, machine or program that an item is for.
type Requester struct {
	Type       string         `json:"type"`
	Value      string         `json:"value"`
	Dictionary map[string]any `json:"dictionary,omitempty"` // properties that rules of access test
}

// Item is requested with exactly the name and version that Offers lists.
type Item struct {
	Item      string             `json:"item"`
	Version   string             `json:"version,omitempty"`
	Count     float64            `json:"count"`
	Variables map[string]float64 `json:"variables,omitempty"` // of a rate formula
	MetaData  map[string]any     `json:"metaData,omitempty"`  // stored in usage records only
}

// AnsweredItem is the result of one item.
type AnsweredItem struct {
	Item          string
	Version       string
	Granted       bool
	Code          string // four digits; the first is 1 if the item was not refused, and 2 if it was
	Description   string
	TokensCharged json.Number // exact
	Retry         Retry       // empty: the item was not refused
}

// Answer is the result of an access request.
type Answer struct {
	CorrelationID string // for `tallygate explain`
	Granted       bool   // every item is granted
	Items         []AnsweredItem
	Advice        string // what exists instead of an unknown item, such as "LaserCut exists as version 1.0"
}

// Offers are the items that can be requested now. The first line item pays first.
type Offers struct {
	Instances []struct {
		InstanceID string `json:"instanceId"`
		Name       string `json:"name"` // short name of the instance
		Items      []struct {
			Item      string `json:"item"`
			Version   string `json:"version"`
			LineItems []struct {
				ActivationID string      `json:"activationId"`
				Rate         json.Number `json:"rate"`
				Formula      string      `json:"formula"` // instead of a rate
			} `json:"lineItems"`
		} `json:"items"`
	} `json:"instances"`
}

// Client can be used by several goroutines.
type Client struct {
	// Socket of the agent. New sets $TALLYGATE_SOCKET, or /run/tallygate/agent.sock.
	Socket string
	// Patience is how long a request is repeated while the agent is down, restarting or busy. New sets 10 s.
	Patience time.Duration

	mutex sync.Mutex
	idle  []*connection // each for one request at a time
	// Without a socket, after many requests at a time: all programs of the device share the agent's sockets.
	resting []*connection
}

const idleMax = 16

// New sends nothing before the first call.
func New() *Client {
	socket := os.Getenv("TALLYGATE_SOCKET")
	if socket == "" {
		socket = "/run/tallygate/agent.sock"
	}
	return &Client{Socket: socket, Patience: 10 * time.Second}
}

// Access requests items once. Each is granted or refused by itself.
func (c *Client) Access(ctx context.Context, instanceID string, requester Requester, items ...Item) (Answer, error) {
	conn := c.take()
	defer c.give(conn)
	if items == nil {
		items = []Item{}
	}
	path := "/v1.1/instances/" + url.PathEscape(instanceID) + "/access-request"
	body := accessBody{Requester: requester, Items: items}
	response, err := conn.once(ctx, call{method: "POST", path: path, body: body})
	if err != nil {
		return Answer{}, err
	}
	return answerOf(response, items)
}

// Offers lists the items that can be requested now.
func (c *Client) Offers(ctx context.Context) (Offers, error) {
	conn := c.take()
	defer c.give(conn)
	var found Offers
	response, err := conn.call(ctx, call{method: "GET", path: "/tallygate/v1/offers"})
	if err == nil {
		err = response.decode(&found)
	}
	if err == nil && found.Instances == nil {
		err = unexpected(response.status, string(response.text))
	}
	return found, err
}

// Close closes idle connections. Sessions stay open.
func (c *Client) Close() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, conn := range c.idle {
		conn.close()
	}
	c.idle = nil
}

func (c *Client) take() *connection {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, found := range []*[]*connection{&c.idle, &c.resting} {
		if last := len(*found) - 1; last >= 0 {
			conn := (*found)[last]
			*found = (*found)[:last]
			return conn
		}
	}
	return newConnection(c.Socket, c.Patience)
}

func (c *Client) give(conn *connection) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if len(c.idle) < idleMax {
		c.idle = append(c.idle, conn)
		return
	}
	conn.close()
	c.resting = append(c.resting, conn)
}

type accessBody struct {
	Requester      Requester `json:"requester"`
	Items          []Item    `json:"requestedItems"`
	RollbackOnDeny *bool     `json:"rollbackOnDeny,omitempty"`
}

// Valid, but not charged because another item of the session request was refused.
const notCharged = "1002"

var isCode = regexp.MustCompile(`^[0-9]{4}$`)

var itemRetry = map[string]Retry{
	"2008": RetryOnline, "2009": RetryOnline, "2010": RetryOnline,
	"2002": RetryLater, "2004": RetryLater, "2005": RetryLater, "2011": RetryLater,
}

func answerOf(r response, requested []Item) (Answer, error) {
	var body struct {
		CorrelationID string `json:"correlationId"`
		Items         []struct {
			Item    string
			Version string
			Status  struct {
				Code        string
				Description *string
			}
			TokensCharged json.Number `json:"totalTokensCharged"`
		} `json:"requestedItems"`
	}
	if err := r.decode(&body); err != nil {
		return Answer{}, err
	}
	if body.CorrelationID == "" || body.Items == nil || len(body.Items) != len(requested) {
		return Answer{}, unexpected(r.status, string(r.text))
	}
	isDenied := r.status == http.StatusForbidden
	answer := Answer{CorrelationID: body.CorrelationID, Granted: !isDenied, Advice: r.header.Get("X-Tallygate-Advice")}
	for _, each := range body.Items {
		if each.Item == "" || !isCode.MatchString(each.Status.Code) || each.Status.Description == nil || each.TokensCharged == "" {
			return Answer{}, unexpected(r.status, string(r.text))
		}
		item := AnsweredItem{
			Item: each.Item, Version: each.Version, Code: each.Status.Code, Description: *each.Status.Description,
			TokensCharged: each.TokensCharged,
		}
		if strings.HasPrefix(item.Code, "1") {
			item.Granted = item.Code != notCharged
		} else if item.Retry = itemRetry[item.Code]; item.Retry == "" {
			item.Retry = RetryNo
		}
		answer.Granted = answer.Granted && item.Granted
		answer.Items = append(answer.Items, item)
	}
	return answer, nil
}

var needCloud = map[string]bool{"DEVICE_LOCKED": true, "NOT_ATTACHED": true, "POLICY_MISSING": true, "POLICY_STALE": true}

func refusalOf(r response) *Error {
	code, message := r.refusal()
	retryAfter, isTemporary := r.retryAfter()
	switch {
	case code == "CALLER_LIMITED":
		if !isTemporary {
			retryAfter = time.Second
		}
		return &Error{Code: code, Message: message, Retry: RetryLater, RetryAfter: retryAfter, kind: ErrLimit}
	case needCloud[code]:
		return &Error{Code: code, Message: message, Retry: RetryOnline, kind: ErrNeedsCloud}
	case isTemporary:
		return &Error{Code: code, Message: message, Retry: RetryLater}
	}
	return &Error{Code: code, Message: message, Retry: RetryNo}
}

// Nil: the error does not mean that the session has ended.
func endOf(err error) *Error {
	var refused *Error
	if !errors.As(err, &refused) {
		return nil
	}
	state := "UNKNOWN"
	switch refused.Code {
	case "NOT_FOUND":
	case "SESSION_NOT_OPERABLE":
		state = strings.TrimPrefix(refused.Message, "Session is ")
	default:
		return nil
	}
	return &Error{Code: "SESSION_ENDED", Message: refused.Message, Retry: RetryNo, State: state, kind: ErrEnded}
}

// Without the final NUL of `sun_path`.
const pathBytesMax = 107

func unreachable(socket string, cause error) *Error {
	if errors.Is(cause, os.ErrPermission) {
		message := fmt.Sprintf("This user may not connect to %s. Add this user to the group of the socket, and sign in again.", socket)
		return &Error{Code: "SOCKET_NOT_PERMITTED", Message: message, Retry: RetryNo, kind: ErrUnreachable}
	}
	advice := "Start the agent"
	if len(socket) > pathBytesMax {
		advice = fmt.Sprintf("Set TALLYGATE_SOCKET to a path of at most %d bytes", pathBytesMax)
	} else if errors.Is(cause, os.ErrNotExist) || errors.Is(cause, syscall.ECONNREFUSED) {
		advice += ", or set TALLYGATE_SOCKET to the path of its socket"
	} else {
		advice += ". If it runs, close unused connections to it: socket.connections_max limits their number"
	}
	var call *url.Error // its text has an address that does not exist
	if errors.As(cause, &call) {
		cause = call.Err
	}
	message := fmt.Sprintf("The agent does not respond at %s (%v). %s.", socket, cause, advice)
	return &Error{Code: "AGENT_UNREACHABLE", Message: message, Retry: RetryLater, kind: ErrUnreachable}
}

func isSuccess(status int) bool {
	return status >= http.StatusOK && status < http.StatusMultipleChoices
}
