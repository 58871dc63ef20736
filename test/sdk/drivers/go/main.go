// Does what the lines of its standard input say, with the client for Go. See ../../driver.ts.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	tallygate "github.com/tallygate/tallygate/sdk/go"
)

var (
	instance = os.Getenv("INSTANCE")
	agent    = tallygate.New()
	session  *tallygate.Session
	ctx      = context.Background()
)

func main() {
	ms, _ := strconv.Atoi(os.Getenv("PATIENCE_MS"))
	agent.Patience = time.Duration(ms) * time.Millisecond
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if err := do(strings.Fields(lines.Text())); err != nil {
			sayError(err)
		}
		fmt.Println("done")
	}
}

func do(words []string) (err error) {
	switch words[0] {
	case "access":
		times, _ := strconv.Atoi(words[4])
		for n := 0; n < times && err == nil; n++ {
			err = sayAnswer(agent.Access(ctx, instance, user(words[1]), item(words[2], words[3])))
		}
	case "burst":
		times, _ := strconv.Atoi(words[1])
		granted := make(chan bool, times)
		for n := 0; n < times; n++ {
			go func() {
				answer, _ := agent.Access(ctx, instance, user("anna"), item("1.0", "1"))
				granted <- answer.Granted
			}()
		}
		total := 0
		for n := 0; n < times; n++ {
			if <-granted {
				total++
			}
		}
		fmt.Println("granted", total)
	case "offers":
		offers, err := agent.Offers(ctx)
		if err != nil {
			return err
		}
		for _, each := range offers.Instances[0].Items {
			fmt.Println("offer", each.Item, each.Version, each.LineItems[0].Rate, offers.Instances[0].Name)
		}
	case "open":
		open := agent.OpenSession
		if len(words) > 1 {
			open = agent.OpenBoundSession
		}
		if session, err = open(ctx, instance); err == nil {
			fmt.Println("opened", session.ID)
		}
	case "request":
		err = sayAnswer(session.Request(ctx, user(words[1]), item("1.0", words[2])))
	case "state":
		state, err := session.State(ctx)
		if err != nil {
			return err
		}
		fmt.Println("state", state)
	case "begin":
		go session.Request(ctx, user(words[1]), item("1.0", words[2]))
	case "hurry":
		short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		defer cancel()
		_, err := session.State(short)
		fmt.Println("late", err)
	case "wait":
		<-session.Done()
		var end *tallygate.Error
		errors.As(session.End(), &end)
		fmt.Println("ended", end.State)
	case "close":
		closed := make(chan error, 2)
		for range words {
			go func() { closed <- session.Close(ctx) }()
		}
		for range words {
			if each := <-closed; each != nil {
				err = each
			}
		}
		if err == nil {
			fmt.Println("closed")
		}
	case "end":
		end := &tallygate.Error{State: "-"}
		errors.As(session.End(), &end)
		fmt.Println("end", end.State)
	}
	return err
}

func user(value string) tallygate.Requester { return tallygate.Requester{Type: "user", Value: value} }

func item(version, count string) tallygate.Item {
	number, _ := strconv.ParseFloat(count, 64)
	return tallygate.Item{Item: "LaserCut", Version: version, Count: number}
}

func sayAnswer(answer tallygate.Answer, err error) error {
	if err != nil {
		return err
	}
	verdict, item := "refused", answer.Items[0]
	if answer.Granted {
		verdict = "granted"
	}
	if item.Retry == "" {
		item.Retry = "-"
	}
	fmt.Println(verdict, item.Code, item.TokensCharged, item.Retry, answer.Advice)
	return nil
}

func sayError(err error) {
	kinds := map[error]string{
		tallygate.ErrUnreachable: "AgentUnreachable", tallygate.ErrNeedsCloud: "NeedsCloud",
		tallygate.ErrLimit: "LimitReached", tallygate.ErrEnded: "SessionEnded",
	}
	name := "TallygateError"
	for kind, each := range kinds {
		if errors.Is(err, kind) {
			name = each
		}
	}
	var refused *tallygate.Error
	if !errors.As(err, &refused) {
		panic(err)
	}
	line := fmt.Sprintln("error", name, refused.Code, refused.Retry)
	for _, word := range []string{"connections", "TALLYGATE_SOCKET", "sign in"} {
		if strings.Contains(refused.Message, word) {
			line = strings.TrimSpace(line) + " " + word + "\n"
		}
	}
	if strings.Contains(refused.Message, "http://") {
		line = strings.TrimSpace(line) + " names an address that does not exist\n"
	}
	fmt.Print(line)
}
