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
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

const (
	// agentPort is the status port of agents.
	agentPort = "15020"
	// late is how long an agent may take to begin and to end.
	late = 10 * time.Second
	// trailerDropped is the trailer with the number of requests that an agent did not write.
	trailerDropped = "Outrigger-Dropped"
	// reachCure is how to reach agents on other machines.
	reachCure = "Agents of pods are asked through kubectl port-forward, others with --agent HOST:15020"
)

// proxy is a proxy whose agent can be asked.
type proxy struct {
	name, namespace, identity string // the name is the address if a flag names the agent
	agent                     string // host:port of the status port
	envoy                     string // version of Envoy, if the control plane knows it
}

// reachFlags are the flags of commands that ask agents.
type reachFlags struct {
	askFlags
	agents []string
}

// addAgents adds the flag for agents to a command.
func (f *reachFlags) addAgents(cmd *cobra.Command) {
	cmd.Flags().StringSliceVar(&f.agents, "agent", nil, "status port of an agent to query instead, as host:port; can be repeated")
}

// find returns the proxies whose name is name, or begins with it, and the names of the others. It
// prints which control planes do not answer.
func (f *reachFlags) find(ctx context.Context, complaints io.Writer, name string) (found, others []proxy, err error) {
	for _, agent := range f.agents {
		found = append(found, proxy{name: agent, agent: agent})
	}
	if len(found) > 0 {
		return found, nil, nil
	}
	answers, err := f.connected(ctx, complaints)
	if err != nil {
		return nil, nil, err
	}
	if name != "" {
		answers = withGone(answers) // its agent may answer
	}
	all := proxiesOf(answers)
	if len(all) == 0 {
		return nil, nil, f.cfg.Exit(exitFailed, errors.New("no proxy is connected to these control planes: name others with --control"))
	}
	if _, err := pickAll(answers, name); err != nil {
		return nil, nil, f.cfg.Exit(exitFailed, err)
	}
	found = proxiesOf(answers)
	return found, slices.DeleteFunc(all, func(p proxy) bool { return slices.Contains(found, p) }), nil
}

// reachable returns proxies with addresses of their agents that lead there from this machine.
func (f *reachFlags) reachable(proxies []proxy, complaints io.Writer) ([]proxy, error) {
	out, err := f.cfg.Cluster.agents(proxies, f.timeout, complaints)
	if err != nil {
		return nil, f.cfg.Exit(exitFailed, err)
	}
	return out, nil
}

// proxiesOf returns the proxies in the answers of control planes.
func proxiesOf(answers []answer[report.Replica]) (out []proxy) {
	for _, a := range answers {
		apart := isolated(a.address)
		for _, p := range a.value.Proxies {
			if len(p.Addresses) > 0 {
				host := p.Addresses[0]
				if apart {
					host = published(host, a.address)
				}
				one := proxy{oneLine(p.Name), p.Namespace, p.Identity, net.JoinHostPort(host, agentPort), oneLine(p.Envoy)}
				if !slices.Contains(out, one) { // two control planes know it while it changes between them
					out = append(out, one)
				}
			}
		}
	}
	return out
}

// published returns the address at which outrigger up publishes the ports of a workload with its own
// network namespace: in the network of the control plane, with the last two bytes of the address in
// the namespace.
func published(host, control string) string {
	inside, err := netip.ParseAddr(host)
	outside, outErr := netip.ParseAddrPort(control)
	if err != nil || outErr != nil || !inside.Is4() || !outside.Addr().Is4() {
		return host
	}
	to, low := outside.Addr().As4(), inside.As4()
	return netip.AddrFrom4([4]byte{to[0], to[1], low[2], low[3]}).String()
}

// get asks an agent. The caller closes the body of the answer. Agents are asked directly: a proxy of
// the environment is for others, and an answer cannot lead elsewhere.
func (p proxy) get(ctx context.Context, path string, query url.Values, timeout time.Duration) (*http.Response, error) {
	u := url.URL{Scheme: "http", Host: p.agent, Path: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	client := &http.Client{
		Timeout:       timeout,
		Transport:     &http.Transport{DisableKeepAlives: true, DisableCompression: true, ResponseHeaderTimeout: late},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		defer func() { _ = resp.Body.Close() }()                         // read-only: closing cannot lose data
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrText))     // as much as there is
		return nil, &answerError{resp.StatusCode, oneLine(string(text))} // the text is of others
	}
	return resp, nil
}

// read returns the whole answer of an agent.
func (p proxy) read(ctx context.Context, path string, query url.Values, timeout time.Duration) ([]byte, error) {
	resp, err := p.get(ctx, path, query, timeout)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // read-only: closing cannot lose data
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxReportPart+1))
	if err == nil && len(raw) > maxReportPart {
		err = fmt.Errorf("the answer has more than %d bytes", maxReportPart)
	}
	return raw, err
}

// requests calls each for every line of the requests that an agent records, and returns how many it
// dropped. began is called once it records.
func (p proxy) requests(ctx context.Context, query url.Values, began func(), each func(line []byte) error) (dropped int, err error) {
	length, err := time.ParseDuration(query.Get("for"))
	if err != nil {
		return 0, fmt.Errorf("the time to record: %w", err)
	}
	resp, err := p.get(ctx, "/debug/requests", query, length+late)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }() // read-only: closing cannot lose data
	began()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 64<<10), maxRecord)
	for lines.Scan() {
		if err := each(bytes.TrimSpace(lines.Bytes())); err != nil {
			return 0, err
		}
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	if dropped, err = strconv.Atoi(strings.TrimSpace(resp.Trailer.Get(trailerDropped))); err != nil {
		return 0, errors.New("it ended the recording early")
	}
	return dropped, nil
}
