// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/internal/columns"
	"github.com/outrigger-mesh/outrigger/internal/output"
)

// maxTapped is how many proxies are tapped at once.
const maxTapped = 64

// tapFlags are the flags of tap.
type tapFlags struct {
	reachFlags
	length                                  time.Duration
	sample, rate                            int
	direction, method, path, status, source string
}

func newTapCommand(cfg Config) *cobra.Command {
	f := tapFlags{reachFlags: reachFlags{askFlags: askFlags{cfg: cfg}}}
	cmd := &cobra.Command{
		Use:   "tap PROXY | --agent HOST:PORT",
		Short: "Print the requests of a workload as they happen",
		Long: `Print the requests that a workload receives (in) and sends (out), without queries,
headers and bodies. PROXY is name.namespace or the beginning of it.

The agent switches on a log of its Envoy, by which no connection is closed, and
switches it off when this command ends, in any way, or --for is over. Envoy logs
the sample, and the agent selects requests and limits their rate. Only one tap or
recording of a proxy runs at a time.

A request that is received shows the identity of its client, and one that is sent
the service. Durations are in milliseconds. -o wide prints names and paths in full.

Agents answer only on their own machine. ` + reachCure + `.`,
		Example: "  outrigger tap catalog\n  outrigger tap catalog --direction inbound --status 5xx,404\n" +
			"  outrigger tap catalog --source shop/frontend --path /items --method GET\n" +
			"  outrigger tap catalog --sample 1 --max-rate 10 -o json\n  outrigger tap --agent 127.0.0.1:15020 --for 30s",
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	f.addAsked(cmd)
	f.complete(cmd, completeProxy(&f.askFlags))
	f.addAgents(cmd)
	flags := cmd.Flags()
	flags.DurationVar(&f.length, "for", maxCapture, "when to end; at most "+maxCapture.String())
	flags.IntVar(&f.sample, "sample", 100, "percentage of requests to look at, from 1 to 100")
	flags.IntVar(&f.rate, "max-rate", 100, "requests a second of a proxy to print, from 1 to 10000; others are dropped and counted")
	flags.StringVar(&f.direction, "direction", "both", "inbound, outbound or both")
	flags.StringVar(&f.method, "method", "", "method of the requests")
	flags.StringVar(&f.path, "path", "", "beginning of their paths")
	flags.StringVar(&f.status, "status", "", "status of the responses: codes or classes, as in 404,5xx; 0 is no response")
	flags.StringVar(&f.source, "source", "", "who sent the requests that are received: ACCOUNT, NAMESPACE/ACCOUNT, an identity, or none for no certificate")
	return cmd
}

func (f *tapFlags) run(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) > 1 || (len(args) == 0) == (len(f.agents) == 0):
		return f.cfg.Exit(exitUsage, errors.New("whose requests? Write outrigger tap PROXY, as in outrigger tap catalog, or --agent HOST:PORT"))
	case f.length <= 0 || f.length > maxCapture:
		return f.cfg.Exit(exitUsage, fmt.Errorf("--for %s must be more than 0 and at most %s", f.length, maxCapture))
	}
	ctx := cmd.Context()
	proxies, _, err := f.find(ctx, cmd.ErrOrStderr(), strings.Join(args, ""))
	if err != nil {
		return err
	}
	if len(proxies) > maxTapped {
		return f.cfg.Exit(exitFailed, fmt.Errorf("%d proxies are more than %d: write more of the name", len(proxies), maxTapped))
	}
	if proxies, err = f.reachable(proxies, cmd.ErrOrStderr()); err != nil {
		return err
	}
	query := url.Values{
		"for": {f.length.String()}, "sample": {strconv.Itoa(f.sample)}, "rate": {strconv.Itoa(f.rate)}, "direction": {f.direction},
		"method": {f.method}, "path": {f.path}, "status": {f.status}, "source": {f.source},
	}
	t := &tap{out: cmd.OutOrStdout(), notes: cmd.ErrOrStderr(), output: f.output, several: len(proxies) > 1, width: f.width(), dropped: map[string]int{}}
	failed := make([]error, len(proxies))
	var all sync.WaitGroup
	for i, p := range proxies {
		all.Go(func() {
			began := func() { t.note("tapping %s for %s at most", p.name, f.length) }
			dropped, err := p.requests(ctx, query, began, func(line []byte) error { return t.line(p, line) })
			switch {
			case err == nil:
				t.drop(p.name, dropped)
			case ctx.Err() == nil:
				failed[i] = fmt.Errorf("proxy %s: %w", p.name, err)
			}
		})
	}
	all.Wait()
	total := 0
	for _, n := range t.dropped {
		total += n
	}
	t.note("%s, %d dropped", count(t.printed, "request", "requests"), total)
	if err := errors.Join(failed...); err != nil {
		return f.cfg.Exit(exitFailed, fmt.Errorf("%w\n%s", err, reachCure))
	}
	return nil
}

// tapped is a request in the JSON and YAML output.
type tapped struct {
	ID          string    `json:"request_id,omitempty"`
	Proxy       string    `json:"proxy"`
	Time        time.Time `json:"time"`
	Direction   string    `json:"direction"`
	Source      string    `json:"source,omitempty"`      // identity of the client of an inbound request
	Destination string    `json:"destination,omitempty"` // host and port of the service of an outbound one
	Method      string    `json:"method"`
	Authority   string    `json:"authority"`
	Path        string    `json:"path"`
	Status      int       `json:"status"`
	Flags       string    `json:"flags"`
	Duration    float64   `json:"duration_milliseconds"`
	Received    uint64    `json:"bytes_received"`
	Sent        uint64    `json:"bytes_sent"`
	Local       string    `json:"downstream_local_address,omitempty"`
	Remote      string    `json:"downstream_remote_address,omitempty"`
}

// tap prints the requests of several proxies.
type tap struct {
	output  string
	several bool
	width   int

	mu         sync.Mutex // guards the fields below
	out, notes io.Writer
	printed    int
	dropped    map[string]int // by proxy
}

// note prints a line that is no request.
func (t *tap) note(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	view{out: t.notes}.say(format+"\n", args...)
}

// drop prints how many requests a proxy has dropped, if there are more than before.
func (t *tap) drop(name string, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n > t.dropped[name] {
		t.dropped[name] = n
		view{out: t.notes}.say("dropped: %s of %s so far; --sample, a filter or a higher --max-rate drops fewer\n", count(n, "request", "requests"), name)
	}
}

// line prints a line of an agent.
func (t *tap) line(from proxy, line []byte) error {
	var r struct {
		Dropped   *int      `json:"dropped"`
		ID        string    `json:"request_id"`
		Local     string    `json:"downstream_local_address"`
		Remote    string    `json:"downstream_remote_address"`
		Start     time.Time `json:"start_time"`
		Outbound  bool      `json:"sent"`
		Method    string    `json:"method"`
		Authority string    `json:"authority"`
		Path      string    `json:"path"`
		Upstream  string    `json:"upstream_cluster"`
		Peer      string    `json:"downstream_peer_uri_san"`
		Code      int       `json:"response_code"`
		Flags     string    `json:"response_flags"`
		Duration  float64   `json:"duration"`
		Received  uint64    `json:"bytes_received"`
		Sent      uint64    `json:"bytes_sent"`
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return fmt.Errorf("read a request: %w", err)
	}
	if r.Dropped != nil {
		t.drop(from.name, *r.Dropped)
		return nil
	}
	one := tapped{
		Proxy: from.name, Time: r.Start, Direction: "inbound", Source: r.Peer, Method: r.Method, Authority: r.Authority, Path: r.Path, Status: r.Code, Flags: r.Flags,
		Duration: r.Duration, Received: r.Received, Sent: r.Sent, ID: r.ID, Local: r.Local, Remote: r.Remote,
	}
	if r.Outbound {
		one.Direction, one.Source = "outbound", ""
		if parts := strings.Split(r.Upstream, "|"); len(parts) == 4 { // outbound|PORT|SUBSET|HOST
			one.Destination = parts[3] + ":" + parts[1]
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.printed++; t.printed == 1 {
		t.head()
	}
	switch t.output {
	case outYAML:
		if t.printed > 1 {
			_, _ = io.WriteString(t.out, "---\n") // the terminal may be closed
		}
		return output.Write(t.out, outYAML, one)
	case outJSON: // a line for each
		text, err := json.Marshal(one)
		if err == nil {
			_, err = fmt.Fprintf(columns.Raw(t.out), "%s\n", output.Visible(string(text)))
		}
		return err
	}
	return t.row(from, one)
}

// head prints the names of the columns.
func (t *tap) head() {
	if output.ForReaders(t.output) {
		_ = t.cells("TIME", "DIR", "PROXY", "PEER", "REQUEST", "STATUS", "MS", "BYTES") // the terminal may be closed
	}
}

// row prints a request.
func (t *tap) row(from proxy, r tapped) error {
	direction, peer, name := "in", cmp.Or(r.Source, "none"), from.name
	if t.output != outWide {
		name = strings.TrimSuffix(name, "."+from.namespace)
	}
	if _, rest, ok := strings.Cut(peer, "/ns/"); ok && t.output != outWide {
		peer = strings.Replace(rest, "/sa/", "/", 1)
	}
	if r.Direction == "outbound" {
		direction, peer = "out", cmp.Or(r.Destination, r.Authority)
	}
	status := strconv.Itoa(r.Status)
	if r.Flags != "-" {
		status += " " + r.Flags
	}
	duration := r.Duration
	return t.cells(r.Time.Local().Format("15:04:05"), direction, name, peer, r.Method+" "+r.Path, status, strings.TrimSuffix(millis(&duration), "ms"), size(float64(r.Sent)))
}

// tapColumns are the widths of the columns, in characters, and the order in which narrow terminals
// do without them; 0 for a column that stays.
func tapColumns() (widths, dropped []int) {
	return []int{8, 3, 12, 16, 13, 10, 6, 5}, []int{3, 5, 4, 0, 0, 0, 2, 1}
}

// cells prints a row that fits the terminal. There is a column for the proxy if there are several.
func (t *tap) cells(cells ...string) error {
	widths, dropped := tapColumns()
	drop := func(i int) {
		cells, widths, dropped = slices.Delete(cells, i, i+1), slices.Delete(widths, i, i+1), slices.Delete(dropped, i, i+1)
	}
	less := tableWidth - t.width
	if !t.several {
		widths[4] += widths[2] + 1
		drop(2)
	}
	const spare = 23 // characters by which texts can be shortened before columns are missing
	for next := 1; less > spare && next <= 5; next++ {
		if i := slices.Index(dropped, next); i >= 0 {
			less -= widths[i] + 1
			drop(i)
		}
	}
	for ; less > 0; less-- {
		widest := -1
		for i, n := range widths {
			if (dropped[i] == 0 || dropped[i] == 4) && (widest < 0 || n > widths[widest]) {
				widest = i
			}
		}
		widths[widest]--
	}
	for i, cell := range cells {
		cell = oneLine(cell)
		if t.width != columns.Unlimited {
			cell = columns.Shorten(cell, widths[i])
		}
		space := strings.Repeat(" ", max(0, widths[i]-utf8.RuneCountInString(cell)))
		if cells[i] = cell + space; dropped[i] == 1 || dropped[i] == 2 { // numbers
			cells[i] = space + cell
		}
	}
	_, err := fmt.Fprintln(columns.Raw(t.out), strings.TrimRight(strings.Join(cells, " "), " "))
	return err
}
