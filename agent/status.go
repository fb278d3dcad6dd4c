// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/outrigger-mesh/outrigger/agent/logging"
	"github.com/outrigger-mesh/outrigger/envoy"
	"github.com/outrigger-mesh/outrigger/internal/clip"
	"github.com/outrigger-mesh/outrigger/internal/specialaddr"
	"github.com/outrigger-mesh/outrigger/sds"
	"github.com/outrigger-mesh/outrigger/status"
	"github.com/outrigger-mesh/outrigger/status/probe"
	"github.com/outrigger-mesh/outrigger/xdsproxy"
)

// status creates the server of the status port.
func (b *builder) status(ctx context.Context) (*status.Server, error) {
	cfg, proxy := b.cfg, b.parts.envoy
	instance := cfg.node.IP
	if cfg.env.Probe.LegacyLocalhost {
		instance = "localhost"
	}
	source := b.probeSource()
	if err := cfg.probers.Share(probe.ClientConfig{SourceIP: source, HTTP1Only: !cfg.env.Probe.HTTP2, KeepAlive: cfg.env.Probe.KeepAlive}); err != nil {
		return nil, err
	}
	c := status.Config{
		Listener:      b.socks.status,
		Ready:         b.ready(),
		Draining:      func() bool { return ctx.Err() != nil },
		Notes:         b.notes,
		AppScrape:     cfg.appScrape,
		Gatherer:      b.registry,
		Probers:       cfg.probers,
		HookSources:   hookSources(cfg),
		InstanceIP:    instance,
		ProbeSourceIP: source,
		Loopback:      status.Loopback{Quit: b.quit, Profiling: cfg.flags.Profiling, Logging: cfg.logLevels, Debug: b.debugHandlers()},
		Logger:        b.logger("status"),
		Registerer:    b.registry,

		MetricsLocalOnly: cfg.env.Metrics.LocalOnly,
		PlainMetrics:     cfg.proxyConfig.GetStatsCompression() != nil && !cfg.proxyConfig.GetStatsCompression().GetValue(),
	}
	if proxy != nil {
		c.Draining = func() bool { return ctx.Err() != nil || proxy.Draining() }
		c.Loopback.Drain = proxy.Drain
		c.EnvoyApart = !cfg.env.Metrics.MergeEnvoy
		c.EnvoyMetricsURL = "http://" + cfg.address(int(cfg.proxyConfig.GetProxyAdminPort())) + "/stats/prometheus"
	}
	return status.New(c)
}

// annotationOVN is on each pod of OVN-Kubernetes.
const annotationOVN = "k8s.ovn.org/pod-networks"

// hookSources returns the addresses that may run the application's lifecycle hooks. It
// ignores an invalid HOST_IP.
func hookSources(cfg *settings) status.HookSources {
	_, ovn := cfg.metadata.Annotations[annotationOVN]
	s := status.HookSources{Anybody: cfg.env.Probe.HooksForAll, More: cfg.env.Probe.HookSources, AfterGateway: ovn}
	if ip, err := specialaddr.ParseHost(cfg.env.Workload.HostIP); err == nil {
		s.HostIP = ip
	}
	return s
}

// readiness returns a check that succeeds if Envoy, if there is one, serves and the
// workload has a valid certificate. A nil workload means that another server manages
// the certificate.
func readiness(proxy *envoy.Process, workload *sds.Workload, namesMissing func() bool) func(context.Context) error {
	return func(ctx context.Context) error {
		if workload != nil {
			switch identity := workload.Current(); {
			case identity == nil:
				return errors.New("the workload has no certificate yet: the certificate authority has not signed one; see the agent's log")
			case workload.Certificate() == nil:
				return fmt.Errorf("the workload's certificate expired at %s and could not be renewed; see the agent's log", identity.NotAfter.UTC().Format(time.RFC3339))
			}
		}
		if proxy != nil {
			if err := proxy.Ready(ctx); err != nil {
				return err
			}
		}
		if namesMissing() {
			return errors.New("the DNS proxy has received no names from the control plane yet")
		}
		return nil
	}
}

// handoverPatience is how long a proxy counts as ready that an agent before this one has left.
const handoverPatience = 10 * time.Second

// ready returns the check of the status port. After a handover Envoy serves, while the components of
// this agent get what the one before had: the proxy stays ready until it is, for a while.
func (b *builder) ready() func(context.Context) error {
	check := readiness(b.parts.envoy, b.parts.workload, b.namesMissing)
	if !b.socks.inherited {
		return check
	}
	var once atomic.Bool
	began := time.Now()
	return func(ctx context.Context) error {
		err := check(ctx)
		if err == nil {
			once.Store(true)
		} else if !once.Load() && time.Since(began) < handoverPatience {
			return nil
		}
		return err
	}
}

// stateTimeout limits how long Envoy may take to answer for the state.
const stateTimeout = 2 * time.Second

// state returns the readiness and the notes in one line, and reports whether the proxy is ready. It
// uses the locks of Envoy's process, the identity and the relay, and so hangs if one of them does.
func (b *builder) state(ctx context.Context) (string, bool) {
	ctx, cancel := context.WithTimeout(ctx, stateTimeout)
	defer cancel()
	text, err := "ready", readiness(b.parts.envoy, b.parts.workload, b.namesMissing)(ctx)
	if err != nil {
		text = err.Error()
	}
	return strings.Join(append([]string{text}, b.notes()...), "; "), err == nil
}

func (b *builder) notes() []string {
	s := b.parts.relay.Status()
	list := notes(s, b.parts.workload, time.Now())
	if s.LastGood && b.parts.lastGood != nil {
		list = append([]string{"serving last good from " + b.parts.lastGood.From().UTC().Format(time.RFC3339)}, list...)
	}
	return list
}

// maxNote is the maximum length of text of Envoy or the control plane in a note, in
// bytes.
const maxNote = 1 << 10

// short returns the form of a text for a note: one line of limited length.
func short(text string) string {
	return logging.OneLine(clip.Text(strings.TrimSpace(text), maxNote))
}

// notes returns the state that readiness does not show: the age of the configuration,
// what was rejected and why, and the expiry of the certificate.
func notes(s xdsproxy.Status, workload *sds.Workload, now time.Time) []string {
	var list []string
	add := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	ago := func(t time.Time) time.Duration { return now.Sub(t).Round(time.Second) }
	switch {
	case s.Connected && !s.LastResponse.IsZero():
		add("control plane: connected, last response %s ago", ago(s.LastResponse))
	case s.Connected:
		add("control plane: connected, no response yet")
	case s.Since.IsZero() && s.Attempts == 0:
		add("control plane: not requested yet")
	case s.Since.IsZero():
		add("control plane: not reached yet, %d attempts: %s", s.Attempts, short(s.Failure))
	case s.LastResponse.IsZero():
		add("control plane: lost %s ago, %d attempts: %s", ago(s.Since), s.Attempts, short(s.Failure))
	default:
		add("control plane: lost %s ago, last response %s ago, %d attempts: %s", ago(s.Since), ago(s.LastResponse), s.Attempts, short(s.Failure))
	}
	for _, t := range s.Types {
		if t.Rejecting() {
			kept := "the last good version stays in force"
			if t.Accepted.IsZero() {
				kept = "no earlier version is known"
			}
			add("rejected %s ago, %s: %s: %s", ago(t.Rejected), kept, t.TypeURL, short(t.Reason))
		}
	}
	if workload != nil {
		if identity := workload.Current(); identity != nil {
			add("certificate: until %s", identity.NotAfter.UTC().Format(time.RFC3339))
		}
	}
	return list
}
