// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// maxOutage is the maximum length of an agent's answer about an outage, in bytes.
const maxOutage = 64 << 10

// outage is an agent's answer to how long its workload works without a control plane.
type outage struct {
	Agent     string    `json:"agent"`
	Error     string    `json:"error,omitempty"`
	Now       time.Time `json:"now,omitzero"` // by the agent's clock
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since,omitzero"` // when the control plane came or went
	Parts     []lasting `json:"parts,omitempty"`
	// Credentials are other secrets of the proxy, those that end first.
	Credentials []lasting `json:"credentials,omitempty"`
}

// agentTimeout is how long the agent of a proxy may take to say when its certificate expires.
const agentTimeout = 5 * time.Second

// agentsOf asks the agents of proxies, on this machine or in pods.
func agentsOf(ctx context.Context, answers []answer[report.Replica], timeout time.Duration) (list []outage) {
	for _, p := range proxiesOf(answers) {
		address, done, err := p.reach(ctx, agentPort, timeout)
		if err != nil {
			list = append(list, outage{Agent: p.agent, Error: err.Error()})
			continue
		}
		list = append(list, outagesOf(ctx, []proxy{{name: p.name, agent: address}}, timeout)...)
		done()
	}
	return list
}

// identity is the name that agents have for the certificate among what lasts.
const identity = "identity"

// expired reports whether the certificate of a workload, or one of its credentials, has expired.
func (o outage) expired() bool {
	ended := func(p lasting) bool { return !p.Until.IsZero() && !p.Until.After(o.Now) }
	return slices.ContainsFunc(o.Credentials, ended) || slices.ContainsFunc(o.Parts, func(p lasting) bool { return p.What == identity && ended(p) })
}

// certificate returns until when the certificate of a proxy is valid; "" if no agent was asked.
func (v view) certificate() string {
	if len(v.agents) == 0 {
		return ""
	}
	o := v.agents[0]
	i := slices.IndexFunc(o.Parts, func(p lasting) bool { return p.What == identity })
	switch {
	case o.Error != "":
		return "unknown: " + o.Error
	case i < 0 || o.Parts[i].Missing:
		return "none"
	}
	return o.Parts[i].left(o.Now)
}

// credential returns the credential of a proxy that ends first; "" if it has none.
func (v view) credential() string {
	if len(v.agents) == 0 || len(v.agents[0].Credentials) == 0 {
		return ""
	}
	o := v.agents[0]
	first := o.Credentials[0]
	text := first.What + ": " + first.left(o.Now)
	if first.Unknown {
		return text + ": " + first.Then
	}
	if len(o.Credentials) > 1 {
		text += "; others later"
	}
	return text
}

// left returns how long a certificate lasts, as a part of a sentence.
func (p lasting) left(now time.Time) string {
	lasts, until := p.lasts(now)
	switch lasts {
	case "expired":
		return "expired at " + until
	case "unknown":
		return lasts
	}
	return lasts + " left, until " + until
}

// lasting is one thing of a workload that may expire.
type lasting struct {
	What    string    `json:"what"`
	Until   time.Time `json:"until,omitzero"` // zero: no limit
	Missing bool      `json:"missing,omitempty"`
	Unknown bool      `json:"unknown,omitempty"`
	Then    string    `json:"then"`
	By      string    `json:"by,omitempty"` // who must renew it, if not the mesh
}

// outage prints how long the workloads of agents last. It asks no control plane.
func (f *reachFlags) outage(cmd *cobra.Command) error {
	proxies, _, err := f.find(cmd.Context(), cmd.ErrOrStderr(), "")
	if err != nil {
		return err
	}
	list := outagesOf(cmd.Context(), proxies, f.timeout)
	if !f.forReaders() {
		err = f.write(cmd.OutOrStdout(), list)
	} else {
		err = view{out: cmd.OutOrStdout(), flags: &f.askFlags}.outages(list)
	}
	if err != nil {
		return err
	}
	if complainAbout(cmd.ErrOrStderr(), list) || slices.ContainsFunc(list, outage.expired) {
		return f.cfg.Exit(exitFailed, nil)
	}
	return nil
}

// complainAbout prints the agents that did not answer, and reports whether there are any.
func complainAbout(out io.Writer, list []outage) (failed bool) {
	for _, o := range list {
		if o.Error != "" {
			failed = true
			_, _ = fmt.Fprintf(out, "error: agent %s: %s. %s\n", o.Agent, oneLine(o.Error), reachCure) // the terminal may be closed
		}
	}
	return failed
}

// outagesOf asks the agents of proxies. The answers are in the order of the proxies.
func outagesOf(ctx context.Context, proxies []proxy, timeout time.Duration) []outage {
	list := make([]outage, len(proxies))
	var g errgroup.Group
	g.SetLimit(atOnce)
	for i, p := range proxies {
		g.Go(func() error {
			one, err := p.outage(ctx, timeout)
			if err != nil {
				one = outage{Error: err.Error()}
			}
			one.Agent = p.agent
			list[i] = one
			return nil
		})
	}
	_ = g.Wait() // each answer has its own error
	return list
}

// outage asks one agent.
func (p proxy) outage(ctx context.Context, timeout time.Duration) (out outage, err error) {
	resp, err := p.get(ctx, "/debug/outage", nil, timeout)
	var refused *answerError
	if errors.As(err, &refused) && refused.code == http.StatusNotFound {
		return out, errors.New("it has no /debug/outage: its version is too old, or this is not the status port of an agent")
	}
	if err != nil {
		return out, err
	}
	defer func() { _ = resp.Body.Close() }() // read-only: closing cannot lose data
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxOutage))
	if err != nil {
		return out, fmt.Errorf("read the response: %w", err)
	}
	if err := json.Unmarshal(raw, &out); err != nil {
		return out, fmt.Errorf("read the response: %w", err)
	}
	if out.Now.IsZero() || len(out.Parts) == 0 {
		return out, errors.New("its response names nothing that lasts: this is not the status port of an agent")
	}
	return out, nil
}

// outages prints the answers of agents.
func (v view) outages(list []outage) error {
	first := true
	for _, o := range list {
		if o.Error != "" {
			continue
		}
		if !first {
			v.say("\n")
		}
		first = false
		link := "lost its control plane " + age(o.Since, o.Now) + " ago"
		switch {
		case o.Connected:
			link = "is connected to a control plane"
		case o.Since.IsZero():
			link = "has not reached a control plane yet"
		}
		v.say("The agent at %s %s.\nWithout control plane, certificate authority and token issuers:\n\n", o.Agent, link)
		rows := [][]string{{"WHAT", "LASTS", "UNTIL", "THEN"}}
		for _, p := range o.Parts {
			lasts, until := p.lasts(o.Now)
			rows = append(rows, []string{p.What, lasts, until, p.Then})
		}
		if _, err := v.columns(rows, "THEN"); err != nil {
			return err
		}
		if len(o.Credentials) > 0 {
			v.say("\nCredentials, which the mesh does not renew:\n")
		}
		v.credentials(o.Credentials, o.Now)
	}
	return nil
}

// ends prints the credentials of a control plane that end soon; all of them in wide output.
func (v view) ends(r report.Replica) {
	var list []lasting
	for _, c := range r.Credentials {
		if c.Soon || v.flags.output == outWide {
			list = append(list, lasting{What: c.What, Until: c.Until, Then: c.Then, By: c.By})
		}
	}
	switch {
	case len(list) == 0:
		return
	case v.flags.output == outWide:
		v.say("Its credentials:\n")
	default:
		v.say("Its credentials that end soon, or have ended:\n")
	}
	v.credentials(list, v.now)
}

// credentials prints when credentials end.
func (v view) credentials(list []lasting, now time.Time) {
	for _, p := range list {
		then := ", then "
		if p.Unknown || !p.Until.After(now) {
			then = ": "
		}
		v.say("  %s: %s%s%s\n", p.What, p.left(now), then, p.Then)
		if text := p.renewed(); text != "" {
			v.say("    %s\n", text)
		}
	}
}

// renewed returns a sentence that says who must renew a credential; "" if that is not known.
func (p lasting) renewed() string {
	if p.By == "" {
		return ""
	}
	return "Renewed by " + oneLine(p.By) + "."
}

// lasts returns the columns LASTS and UNTIL.
func (p lasting) lasts(now time.Time) (lasts, until string) {
	switch left := p.Until.Sub(now); {
	case p.Unknown:
		return "unknown", "-"
	case p.Missing:
		return "none", "-"
	case p.Until.IsZero():
		return "no limit", "-"
	case left <= 0:
		return "expired", p.Until.UTC().Format(time.RFC3339)
	case left < time.Minute:
		return left.Truncate(time.Second).String(), p.Until.UTC().Format(time.RFC3339)
	case left < 48*time.Hour:
		return strings.TrimSuffix(left.Truncate(time.Minute).String(), "0s"), p.Until.UTC().Format(time.RFC3339)
	default:
		return fmt.Sprintf("%dd", int(left.Hours()/24)), p.Until.UTC().Format(time.RFC3339)
	}
}
