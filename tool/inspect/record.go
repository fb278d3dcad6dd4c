// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

const (
	// agentPort is the status port of agents.
	agentPort = "15020"
	// maxCapture is how long requests are recorded at most.
	maxCapture = 10 * time.Minute
	// late is how long an agent may take to begin and to end.
	late = 10 * time.Second
	// trailerDropped is the trailer with the number of requests that an agent did not record.
	trailerDropped = "Outrigger-Dropped"
)

// recordFlags are the flags of a recording.
type recordFlags struct {
	askFlags
	to     string
	agents []string
	length time.Duration
	file   string
}

func newRecordCommand(cfg Config) *cobra.Command {
	f := recordFlags{askFlags: askFlags{cfg: cfg, outputs: []string{""}}}
	cmd := &cobra.Command{
		Use:   "record --to PROXY | --agent HOST:PORT",
		Short: "Record the requests to a workload for a replay",
		Long: `Record the requests to a workload for some time, in the form that outrigger
policy replay reads. The agent switches on a log of its Envoy for this time, by
which no connection is closed.

PROXY is name.namespace or the beginning of it: the requests to all these proxies
are recorded. Their agents answer only on their own machine; elsewhere forward
the port of one, and name it:

  kubectl port-forward pod/catalog-1 15020 &
  outrigger policy record --agent 127.0.0.1:15020 --file requests.log

A record has the method, the path without its query, the host, addresses, the
identity of the client, and the headers that OUTRIGGER_RECORD_HEADERS of the agent
names. It has no body, no token and no other header. The file is for its owner
only.`,
		Example: "  outrigger policy record --to catalog --for 1m --file requests.log\n" +
			"  outrigger policy replay --to catalog -f proposed.yaml requests.log",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	cmd.Flags().StringVar(&f.to, "to", "", "the proxies that the requests are sent to")
	cmd.Flags().StringSliceVar(&f.agents, "agent", nil, "status port of an agent to ask instead, as host:port; can be repeated")
	cmd.Flags().DurationVar(&f.length, "for", time.Minute, "how long to record; at most "+maxCapture.String())
	cmd.Flags().StringVar(&f.file, "file", "", "new file for the records (default: standard output)")
	cmd.Flags().StringSliceVar(&f.controls, "control", nil, "control plane that knows the proxies, as host:port of its /debug (default: OUTRIGGER_CONTROL; else the running outrigger up; else 127.0.0.1:15014)")
	cmd.Flags().DurationVar(&f.timeout, "timeout", defaultTimeout, "how long a control plane may take to answer")
	return cmd
}

func (f *recordFlags) run(cmd *cobra.Command) error {
	switch {
	case (f.to == "") == (len(f.agents) == 0):
		return f.cfg.Exit(exitUsage, errors.New("whose requests? Write --to PROXY, as in --to catalog, or --agent HOST:PORT"))
	case f.length <= 0 || f.length > maxCapture:
		return f.cfg.Exit(exitUsage, fmt.Errorf("--for %s must be more than 0 and at most %s", f.length, maxCapture))
	}
	agents := f.agents
	if f.to != "" {
		var err error
		if agents, err = f.find(cmd.Context()); err != nil {
			return err
		}
	}
	out := cmd.OutOrStdout()
	var file *os.File
	if f.file != "" {
		var err error
		if file, err = os.OpenFile(f.file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
			return f.cfg.Exit(exitFailed, fmt.Errorf("the records need a new file: %w", err))
		}
		out = file
	}
	r := &recording{out: out, progress: cmd.ErrOrStderr(), length: f.length}
	err := r.all(cmd.Context(), agents)
	if file != nil {
		err = errors.Join(err, file.Close())
	}
	_, _ = fmt.Fprintf(r.progress, "%s\n", count(r.written, "request", "requests")) // only progress
	if r.dropped > 0 {
		err = errors.Join(err, fmt.Errorf("%d more requests are missing: they came faster than they could be written", r.dropped))
	}
	if err != nil {
		return f.cfg.Exit(exitFailed, err)
	}
	return nil
}

// find returns the agents of the proxies.
func (f *recordFlags) find(ctx context.Context) ([]string, error) {
	addresses, err := f.addresses()
	if err != nil {
		return nil, err
	}
	answers := ask[report.Replica](ctx, addresses, question{path: "proxies"}, f.timeout)
	if _, err := pickAll(answers, f.to); err != nil {
		return nil, f.cfg.Exit(exitFailed, err)
	}
	var agents []string
	for _, a := range answers {
		for _, p := range a.value.Proxies {
			if len(p.Addresses) > 0 {
				agents = append(agents, net.JoinHostPort(p.Addresses[0], agentPort))
			}
		}
	}
	return agents, nil
}

// recording writes the requests of several agents.
type recording struct {
	progress io.Writer
	length   time.Duration

	mu      sync.Mutex // guards what follows
	out     io.Writer
	written int
	dropped int
}

// all records until the time is over, or one of the agents fails.
func (r *recording) all(ctx context.Context, agents []string) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, agent := range agents {
		g.Go(func() error {
			if err := r.agent(ctx, agent); err != nil {
				return fmt.Errorf("agent %s: %w", agent, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// agent records the requests of an agent.
func (r *recording) agent(ctx context.Context, agent string) error {
	u := url.URL{Scheme: "http", Host: agent, Path: "/debug/requests", RawQuery: url.Values{"for": {r.length.String()}}.Encode()}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return err
	}
	client := &http.Client{Timeout: r.length + late, Transport: &http.Transport{DisableKeepAlives: true, ResponseHeaderTimeout: late}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // read-only: closing cannot lose data
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrText)) // as much as there is
		return &answerError{resp.StatusCode, plain(string(bytes.TrimSpace(text)))}
	}
	_, _ = fmt.Fprintf(r.progress, "recording the requests to %s for %s\n", agent, r.length) // only progress
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 64<<10), maxRecord)
	for lines.Scan() {
		if err := r.write(lines.Text()); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	dropped, err := strconv.Atoi(resp.Trailer.Get(trailerDropped))
	if err != nil {
		return errors.New("it ended the recording early")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dropped += dropped
	return nil
}

func (r *recording) write(line string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.written++
	_, err := io.WriteString(r.out, strings.TrimSpace(line)+"\n")
	return err
}
