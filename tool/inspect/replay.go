// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

const (
	// maxBatch is the size of the records that are sent at once, in bytes. A form has up to three
	// times as many, and control planes read 8 MiB.
	maxBatch = 2 << 20
	// maxPolicies is the maximum size of the proposed policies in bytes.
	maxPolicies = 256 << 10
	// maxRecord is the maximum size of a record in bytes.
	maxRecord = 256 << 10
	// sayEvery is how often the progress is printed.
	sayEvery = 3 * time.Second
)

func newPolicyCommand(cfg Config) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Try AuthorizationPolicies before they are applied",
		Args:  cobra.NoArgs,
	}
	cmd.AddCommand(newRecordCommand(cfg), newReplayCommand(cfg))
	return cmd
}

// replayFlags are the flags of a replay.
type replayFlags struct {
	askFlags
	to, namespace string
	files         []string
	envoy         string
	in            io.Reader
}

func newReplayCommand(cfg Config) *cobra.Command {
	f := replayFlags{askFlags: askFlags{cfg: cfg}}
	cmd := &cobra.Command{
		Use:   "replay --to WORKLOAD -f FILE [LOG]...",
		Short: "Print which recorded requests other policies would decide differently",
		Long: `Print which requests and TCP connections in an access log would be decided
differently if the AuthorizationPolicies of the files were applied, and by which
rules. Nothing is applied, and no request is sent. A policy replaces the stored one
with its name.

WORKLOAD is a service or a proxy, and LOG is a file of outrigger policy record or
of its Envoy's access log, in JSON, or - for standard input. These settings of the
mesh config write the log with all that rules can compare; add the headers that
yours do:

  accessLogFile: /dev/stdout
  accessLogEncoding: JSON
  accessLogFormat: |
   {"method": "%REQ(:METHOD)%", "path": "%REQ(:PATH)%",
   "authority": "%REQ(:AUTHORITY)%", "upstream_cluster": "%UPSTREAM_CLUSTER%",
   "requested_server_name": "%REQUESTED_SERVER_NAME%",
   "downstream_local_address": "%DOWNSTREAM_LOCAL_ADDRESS%",
   "downstream_remote_address": "%DOWNSTREAM_DIRECT_REMOTE_ADDRESS%",
   "downstream_peer_uri_san": "%DOWNSTREAM_PEER_URI_SAN%",
   "x_forwarded_for": "%REQ(X-FORWARDED-FOR)%",
   "response_code_details": "%RESPONSE_CODE_DETAILS%",
   "request_claims": "%DYNAMIC_METADATA(envoy.filters.http.jwt_authn:payload)%",
   "request_headers": {"x-team": "%REQ(X-TEAM)%"}}

Tokens are not validated again: the claims are those of a token that Envoy accepted.

The control plane decides by the configuration that it has for the proxy. With
--envoy also a real Envoy does, on this machine and with the same filters: it
forwards nothing, and external authorizers are not asked. Records that differ only
in what no rule compares are sent to it once. If the two do not agree, these records
are printed.

The exit code is 0 if no decision changes, and 1 if some do or the two do not agree.`,
		Example: "  outrigger policy replay --to catalog -f proposed.yaml access.log\n" +
			"  outrigger policy replay --to catalog -f new.yaml --envoy bin/envoy access.log\n" +
			"  kubectl logs deploy/catalog -c istio-proxy | \\\n    outrigger policy replay --to catalog.shop -f proposed.yaml -",
		RunE: func(cmd *cobra.Command, args []string) error {
			f.in = cmd.InOrStdin()
			return f.run(cmd, args)
		},
	}
	cmd.Flags().StringVar(&f.to, "to", "", "the service or the proxy that the requests were sent to")
	cmd.Flags().StringVarP(&f.namespace, "namespace", "n", "", "namespace of a service or proxy that is named without one")
	cmd.Flags().StringSliceVarP(&f.files, "filename", "f", nil, "file with proposed policies; can be repeated")
	cmd.Flags().StringVar(&f.envoy, "envoy", "", "program of an Envoy that also decides; use the version of the proxy")
	f.add(cmd)
	return cmd
}

func (f *replayFlags) run(cmd *cobra.Command, logs []string) error {
	if f.to == "" || len(f.files) == 0 || len(logs) == 0 {
		return f.cfg.Exit(exitUsage, errors.New("write --to WORKLOAD, -f FILE with policies, and the files of the access log"))
	}
	fields, err := f.fields()
	if err != nil {
		return f.cfg.Exit(exitUsage, err)
	}
	addresses, err := f.addresses()
	if err != nil {
		return err
	}
	r := &replay{flags: f, addresses: addresses, fields: fields, progress: cmd.ErrOrStderr(), said: time.Now(), sum: report.Replay{Flips: []report.Flip{}}}
	if f.envoy != "" {
		if err := r.startEnvoy(cmd.Context()); err != nil {
			return f.cfg.Exit(exitFailed, err)
		}
		defer func() { _ = r.second.trial.end() }() // what is left is in the directory of temporary files
	}
	done := make(chan error, 1)
	go func() { done <- r.files(cmd.Context(), logs) }() // a pipe may block forever; only the end of the process stops that
	select {
	case err = <-done:
	case <-cmd.Context().Done():
		err = errors.New("interrupted")
	}
	if err != nil {
		return f.cfg.Exit(exitFailed, err)
	}
	slices.SortStableFunc(r.sum.Flips, func(a, b report.Flip) int { return cmp.Compare(b.Count, a.Count) })
	if !f.forReaders() {
		err = f.write(cmd.OutOrStdout(), r.sum)
	} else {
		err = view{out: cmd.OutOrStdout(), now: time.Now(), flags: &f.askFlags}.replay(r.sum)
	}
	if err == nil && (len(r.sum.Flips) > 0 || r.sum.Envoy != nil && r.sum.Envoy.Disputes > 0) {
		err = f.cfg.Exit(exitFailed, nil)
	}
	return err
}

// fields returns the fields that are the same for all records.
func (f *replayFlags) fields() (url.Values, error) {
	to, size := f.to, 0
	if f.namespace != "" && !strings.Contains(to, ".") {
		to += "." + f.namespace
	}
	out := url.Values{"to": {to}}
	for _, name := range f.files {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		if size += len(text); size > maxPolicies {
			return nil, fmt.Errorf("the proposed policies have more than %d bytes: propose those for this workload", maxPolicies)
		}
		out.Add("policies", string(text))
		out.Add("source", name)
	}
	return out, nil
}

// replay sends records and adds up the answers.
type replay struct {
	flags     *replayFlags
	addresses []string // of the control planes; of one, once it has answered
	fields    url.Values
	batch     strings.Builder
	sent      bool
	second    *second // nil without an Envoy
	sum       report.Replay
	progress  io.Writer
	said      time.Time
}

// files sends the records of all files.
func (r *replay) files(ctx context.Context, names []string) error {
	for _, name := range names {
		if err := r.file(ctx, name); err != nil {
			return err
		}
	}
	if err := r.send(ctx); err != nil {
		return err
	}
	if r.second != nil {
		r.second.total(&r.sum)
	}
	return nil
}

// startEnvoy starts an Envoy with the listeners of the control plane.
func (r *replay) startEnvoy(ctx context.Context) error {
	r.fields.Set("listeners", "true")
	a, err := r.ask(ctx)
	if err != nil {
		return err
	}
	r.fields.Del("listeners")
	r.fields.Set("tried", "true")
	r.second, err = newSecond(ctx, r.flags.envoy, a.Listeners)
	return err
}

// file sends the records of a file, except for the last batch.
func (r *replay) file(ctx context.Context, name string) error {
	in := r.flags.in
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }() // read-only: closing cannot lose data
		in = file
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 64<<10), maxRecord)
	for lines.Scan() {
		if err := r.line(ctx, lines.Bytes()); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return nil
}

// line collects a record.
func (r *replay) line(ctx context.Context, line []byte) (err error) {
	if r.batch.Len()+len(line) > maxBatch {
		if err := r.send(ctx); err != nil {
			return err
		}
	}
	if r.second != nil {
		if line, err = r.second.add(line); line == nil {
			return err
		}
	}
	r.batch.Write(line)
	r.batch.WriteByte('\n')
	return nil
}

// send sends the records that were collected. The first control plane that knows the workload gets
// all of them.
func (r *replay) send(ctx context.Context) error {
	if r.batch.Len() == 0 && r.sent {
		return nil
	}
	r.sent = true
	a, err := r.ask(ctx)
	if err != nil {
		return err
	}
	flips := r.add(a)
	if r.second != nil {
		return r.second.answered(ctx, a, flips)
	}
	return nil
}

// ask sends the records that were collected, and returns the answer.
func (r *replay) ask(ctx context.Context) (report.Replay, error) {
	r.fields.Set("records", r.batch.String())
	r.batch.Reset()
	answers := ask[report.Replay](ctx, r.addresses, question{path: "replay", fields: r.fields, form: true}, r.flags.timeout)
	for _, a := range answers {
		if a.err == nil {
			r.addresses = []string{a.address}
			return a.value, nil
		}
	}
	var refusal *answerError
	for _, a := range answers {
		if errors.As(a.err, &refusal) {
			return report.Replay{}, errors.New(refusal.text)
		}
	}
	return report.Replay{}, fmt.Errorf("%s: %w", answers[0].address, answers[0].err)
}

// add adds an answer to the sum, and returns the indices of its flips there.
func (r *replay) add(a report.Replay) (indices []int) {
	s := &r.sum
	s.Replica, s.Proxy, s.Skipped = a.Replica, a.Proxy, a.Skipped
	s.Decided, s.Other, s.Unread, s.Connections = s.Decided+a.Decided, s.Other+a.Other, s.Unread+a.Unread, s.Connections+a.Connections
	s.Unnamed, s.Unclaimed = s.Unnamed+a.Unnamed, s.Unclaimed+a.Unclaimed
	for _, flip := range a.Flips {
		i := slices.IndexFunc(s.Flips, func(f report.Flip) bool {
			return f.Allowed == flip.Allowed && f.By == flip.By && (f.Example.Method == "") == (flip.Example.Method == "") && (f.Rule == nil) == (flip.Rule == nil) && (f.Rule == nil || *f.Rule == *flip.Rule)
		})
		if i < 0 {
			i = len(s.Flips)
			s.Flips = append(s.Flips, flip)
		} else {
			s.Flips[i].Count += flip.Count
		}
		indices = append(indices, i)
	}
	if time.Since(r.said) > sayEvery {
		r.said = time.Now()
		_, _ = fmt.Fprintf(r.progress, "%d records\n", s.Decided+s.Other+s.Unread) // only progress
	}
	return indices
}

// replay prints the decisions that change.
func (v view) replay(r report.Replay) error {
	changed := 0
	for _, f := range r.Flips {
		changed += f.Count
	}
	what := count(r.Decided-r.Connections, "request", "requests")
	if r.Connections > 0 {
		what += " and " + count(r.Connections, "connection", "connections")
	}
	v.say("%s to %s, %s\n", what, r.Proxy, count(changed, "decision changes", "decisions change"))
	for _, f := range r.Flips {
		why := f.By
		switch {
		case f.Rule != nil:
			why = "by " + ruleText(*f.Rule)
		case f.By == "no-rule":
			why = "as no rule that allows requests matches"
		}
		some, example := count(f.Count, "request", "requests"), fmt.Sprintf("%s %s, host %s, port %d", f.Example.Method, f.Example.Path, cmp.Or(f.Example.Host, "unknown"), f.Example.Port)
		if f.Example.Method == "" {
			some, example = count(f.Count, "connection", "connections"), fmt.Sprintf("a connection to port %d", f.Example.Port)
		}
		if f.Allowed {
			v.say("\nNow allowed: %s\n", some)
			v.field("before", "denied, "+why)
		} else {
			v.say("\nNow denied: %s\n", some)
			v.field("denied", why)
		}
		v.field("such as", example)
		v.field("from", strings.TrimSuffix(cmp.Or(f.Example.Identity, "a client without a certificate")+", "+f.Example.Address, ", "))
	}
	if r.Other > 0 {
		v.say("\n%s: requests of the workload itself\n", count(r.Other, "record is skipped", "records are skipped"))
	}
	if r.Unread > 0 {
		v.say("\n%s: no JSON with the fields of an access log, or no request\n", count(r.Unread, "line is skipped", "lines are skipped"))
	}
	if r.Unnamed > 0 {
		v.say("\n%s not contain the client: no rule about callers matches.\nAdd downstream_peer_uri_san to the log: outrigger policy replay --help\n", count(r.Unnamed, "record does", "records do"))
	}
	if r.Unclaimed > 0 {
		v.say("\n%s not contain the claims that rules compare: they see a request without them.\nAdd request_claims to the log, or name the claims in OUTRIGGER_RECORD_CLAIMS\n", count(r.Unclaimed, "record does", "records do"))
	}
	for _, name := range r.Skipped {
		v.say("\nNot evaluated: %s, which may deny or change the request\n", name)
	}
	if r.Envoy != nil {
		v.second(*r.Envoy)
	}
	return nil
}

// second prints what an Envoy decides.
func (v view) second(s report.Second) {
	if s.Unsent > 0 {
		v.say("\n%s not sent to Envoy: no client can send such requests over HTTP/1.1, or a token was refused\n", count(s.Unsent, "record was", "records were"))
	}
	if s.Disputes == 0 {
		v.say("\nEnvoy decides the same about %s\n", count(s.Distinct, "different request", "different requests"))
		return
	}
	v.say("\nENVOY DOES NOT AGREE about %s. Trust Envoy, and report this:\n", count(s.Disputes, "request", "requests"))
	for _, text := range s.Disputed {
		v.say("  %s\n", oneLine(text))
	}
}
