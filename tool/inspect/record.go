// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/internal/columns"
	"github.com/outrigger-mesh/outrigger/internal/output"
)

// maxCapture is how long requests are recorded at most.
const maxCapture = 10 * time.Minute

// recordFlags are the flags of a recording.
type recordFlags struct {
	reachFlags
	to     string
	length time.Duration
	file   string
}

func newRecordCommand(cfg Config) *cobra.Command {
	f := recordFlags{reachFlags: reachFlags{askFlags: askFlags{cfg: cfg}}}
	cmd := &cobra.Command{
		Use:   "record --to PROXY | --agent HOST:PORT",
		Short: "Record the requests to a workload for a replay",
		Long: `Record the requests and the TCP connections to a workload for some time, in the
form that outrigger policy replay reads. Connections are recorded when they end. The
agent switches on a log of its Envoy for this time, by which no connection is closed.

PROXY is name.namespace or the beginning of it: the requests to all these proxies
are recorded. Their agents answer only on their own machine. ` + reachCure + `.

A record has the method, the path without its query, the host, addresses, the
identity of the client, the headers that OUTRIGGER_RECORD_HEADERS of the agent
names, and the status, the time and the size of the response. If the agent has
OUTRIGGER_RECORD_CLAIMS, it has these claims of a valid token, iss and aud, and the
names of the others. It has no body, no token and no other header. The file is for
its owner only.`,
		Example: "  outrigger policy record --to catalog --for 1m --file requests.log\n" +
			"  outrigger policy replay --to catalog -f proposed.yaml requests.log",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	cmd.Flags().StringVar(&f.to, "to", "", "the proxies that the requests are sent to")
	f.addAgents(cmd)
	cmd.Flags().DurationVar(&f.length, "for", time.Minute, "how long to record; at most "+maxCapture.String())
	cmd.Flags().StringVar(&f.file, "file", "", "new file for the records (default: standard output)")
	f.addControls(cmd)
	return cmd
}

func (f *recordFlags) run(cmd *cobra.Command) error {
	switch {
	case (f.to == "") == (len(f.agents) == 0):
		return f.cfg.Exit(exitUsage, errors.New("no workload is named: write --to PROXY, as in --to catalog, or --agent HOST:PORT"))
	case f.length <= 0 || f.length > maxCapture:
		return f.cfg.Exit(exitUsage, fmt.Errorf("--for %s must be more than 0 and at most %s", f.length, maxCapture))
	}
	proxies, _, err := f.find(cmd.Context(), cmd.ErrOrStderr(), f.to)
	if err == nil {
		proxies, err = f.reachable(proxies, cmd.ErrOrStderr())
	}
	if err != nil {
		return err
	}
	out := columns.Raw(cmd.OutOrStdout())
	var file *os.File
	if f.file != "" {
		if file, err = os.OpenFile(f.file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
			return f.cfg.Exit(exitFailed, fmt.Errorf("the records need a new file: %w", err))
		}
		out = file
	}
	r := &recording{out: out, progress: cmd.ErrOrStderr(), length: f.length}
	err = r.all(cmd.Context(), proxies)
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

// recording writes the requests of several agents.
type recording struct {
	progress io.Writer
	length   time.Duration

	mu      sync.Mutex // guards the fields below
	out     io.Writer
	written int
	dropped int
}

// all records until the time is over, or one of the agents fails.
func (r *recording) all(ctx context.Context, proxies []proxy) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, p := range proxies {
		g.Go(func() error {
			began := func() {
				_, _ = fmt.Fprintf(r.progress, "recording the requests to %s for %s\n", p.agent, r.length) // only progress
			}
			dropped, err := p.requests(ctx, url.Values{"for": {r.length.String()}}, began, r.write)
			if err != nil && ctx.Err() == nil { // Ctrl-C ends it, too
				return fmt.Errorf("agent %s: %w", p.agent, err)
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.dropped += dropped
			return nil
		})
	}
	return g.Wait()
}

func (r *recording) write(line []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.written++
	_, err := fmt.Fprintf(r.out, "%s\n", output.Visible(string(line)))
	return err
}
