// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"
)

// maxStreams is how many lines the table of TCP services has.
const maxStreams = 30

// certWait is how long the table waits for an Envoy to report its certificate.
const certWait = 2 * time.Second

// parts returns all processes of the mesh: the control plane, and for each
// workload its application and its agent.
func (u *Mesh) parts(s *state) (control *part, workloads []*part, err error) {
	rule, err := u.issuer.rule()
	if err != nil {
		return nil, nil, err
	}
	control, err = u.newPart(s, controlName, roleControl, u.controlCommand(s, rule))
	if err != nil {
		return nil, nil, err
	}
	control.grace = graceControl
	control.ready = u.readyAt("http://"+hostPort(u.mesh.controlAddress(), controlHTTPPort)+"/ready", http.StatusOK)
	for _, w := range u.mesh.workloads {
		app, agent, err := u.workloadParts(s, w)
		if err != nil {
			return nil, nil, err
		}
		agent.after = control.firstReady
		workloads = append(workloads, app, agent)
	}
	return control, workloads, nil
}

func (u *Mesh) workloadParts(s *state, w *workload) (app, agent *part, err error) {
	run, err := u.appCommand(s, w)
	if err != nil {
		return nil, nil, err
	}
	if app, err = u.newPart(s, w.name, roleApp, run); err != nil {
		return nil, nil, err
	}
	app.ready = u.appReady(w)
	if run, err = u.agentCommand(s, w); err != nil {
		return nil, nil, err
	}
	if agent, err = u.newPart(s, w.name, roleAgent, run); err != nil {
		return nil, nil, err
	}
	agent.prepare = func() error { return u.copyRoot(s, w) }
	agent.ready = u.readyAt("http://"+hostPort(w.address, statusPort)+"/healthz/ready", http.StatusOK)
	return app, agent, nil
}

// appReady returns a function that waits until the application is ready: its ready path responds
// or, without one, its port is open. An application without a port is ready once it has started.
func (u *Mesh) appReady(w *workload) func(context.Context) error {
	address := hostPort(netip.AddrFrom4([4]byte{127, 0, 0, 1}), w.port)
	accepts := listens(address, (&net.Dialer{}).DialContext)
	if u.network != nil { // a published port always accepts
		accepts = listens(address, func(ctx context.Context, _, address string) (net.Conn, error) {
			return u.network.Dial(ctx, w.name, address)
		})
	}
	switch {
	case !w.listens():
		return func(context.Context) error { return nil }
	case w.readyPath != "":
		return u.readyAt("http://"+address+w.readyPath, http.StatusPermanentRedirect)
	}
	return func(ctx context.Context) error { return poll(ctx, accepts) }
}

func (u *Mesh) newPart(s *state, name string, r role, c command) (*part, error) {
	label := name
	if r == roleAgent {
		label = agentLabel(name)
	}
	out, err := newOutput(s.path("log", logName(label)))
	if err != nil {
		return nil, err
	}
	out.quiet = r != roleApp && !u.cfg.Verbose
	out.show = func(l level, text string) { u.screen.child(label, l, text) }
	if r == roleControl {
		out.translate = func(line string) (level, string, bool) { return u.configProblem(s, line) }
	}
	return &part{
		name: name, role: r, command: c, out: out, events: u.show, kill: u.cfg.Kill,
		grace: graceWorkload, restart: defaultRestart(), firstReady: make(chan struct{}),
	}, nil
}

func (u *Mesh) readyAt(url string, most int) func(context.Context) error {
	return func(ctx context.Context) error { return poll(ctx, answers(u.client, url, most)) }
}

func closeOutputs(parts []*part) {
	for _, p := range parts {
		p.out.close()
	}
}

func (u *Mesh) trackParts(control *part, workloads []*part) {
	u.screen.track(control.name, control.role)
	for _, w := range u.mesh.workloads {
		u.screen.track(w.name, roleApp, roleAgent)
	}
}

// show displays an event to the user.
func (u *Mesh) show(p *part, e event) {
	u.live.part(p, e)
	switch {
	case e.kind == eventStarted && e.life == 1:
		u.screen.progress(p.name, p.role, stateStarting)
	case e.kind == eventReady && e.life == 1:
		u.screen.progress(p.name, p.role, "ready in "+seconds(e.took))
	case e.kind == eventReady:
		u.screen.progress(p.name, p.role, "ready again")
		u.screen.say(colorGreen, "outrigger: %sthe %s is ready again after %s", owner(p.name), p.role, seconds(e.took))
	case e.kind == eventEnded:
		why := ""
		if e.why != "" {
			why = ": " + e.why
		}
		u.screen.progress(p.name, p.role, "ended")
		u.screen.say(colorRed, "outrigger: %sthe %s %s%s; starting it again in %s", owner(p.name), p.role, e.exit, why, e.wait)
	}
}

// announce waits until every part is ready and displays the table.
func (u *Mesh) announce(ctx context.Context, began time.Time, parts []*part) error {
	timeout := time.NewTimer(u.cfg.Timeout)
	defer timeout.Stop()
	for _, p := range parts {
		select {
		case <-p.firstReady:
		case <-ctx.Done():
			return nil
		case <-timeout.C:
			return notReady(parts, u.cfg.Timeout)
		}
	}
	took := time.Since(began)
	rows := [][]string{{"WORKLOAD", "ADDRESS", "ENVOY", "IDENTITY", "CERTIFICATE EXPIRES"}}
	certs, cancel := context.WithTimeout(ctx, certWait)
	defer cancel()
	streams := [][]string{{"WORKLOAD", "TCP SERVICE", "AT"}}
	for _, w := range u.mesh.workloads {
		rows = append(rows, u.describe(certs, w))
		streams = append(streams, u.streamsOf(certs, w)...)
	}
	u.screen.settle()
	if ctx.Err() != nil {
		return nil
	}
	u.screen.table(rows)
	if len(streams) > 1 {
		u.screen.table(streams[:min(len(streams), maxStreams)])
	}
	if n := len(streams) - maxStreams; n > 0 {
		u.screen.say("", "and %d more", n)
	}
	u.screen.say(colorGreen, "ready in %s; Ctrl-C ends it", seconds(took))
	u.screen.say("", "\ntry:\n%s", strings.Join(u.tries(ctx), "\n"))
	return nil
}

// notReady returns an error that names the parts that are not ready in time, with the last lines of
// their output.
func notReady(parts []*part, timeout time.Duration) error {
	var errs []error
	for _, p := range parts {
		if p.wasReady() {
			continue
		}
		if p.after != nil && !isClosed(p.after) {
			continue // it is waiting for another part
		}
		errs = append(errs, fmt.Errorf("%sthe %s is not ready after %s%s%s", owner(p.name), p.role, timeout, p.hint(), p.out.lastLines()))
	}
	return errors.Join(errs...)
}

// hint explains the readiness condition, if the user can change it.
func (p *part) hint() string {
	if p.role != roleApp {
		return ""
	}
	return ": it must listen on 127.0.0.1 and its port (and answer its ready path, if it has one)"
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// describe returns a workload's row of the table.
func (u *Mesh) describe(ctx context.Context, w *workload) []string {
	var cert certificate
	admin := hostPort(w.address, adminPort)
	err := poll(ctx, func(ctx context.Context) (ok bool) {
		cert, ok, _ = askCertificate(ctx, u.client, admin) // retried until there is one
		return ok
	})
	if err != nil {
		return []string{w.name, w.address.String(), "ready", "none yet", "-"}
	}
	return []string{w.name, w.address.String(), "ready", cert.identity, cert.expires.Local().Format("2006-01-02 15:04")}
}

// streamsOf returns the TCP services that a workload reaches at its own address, and where.
func (u *Mesh) streamsOf(ctx context.Context, w *workload) (rows [][]string) {
	if u.mesh.isolated {
		return nil // at the addresses of the services
	}
	list, err := askStreams(ctx, u.client, hostPort(w.address, adminPort))
	if err != nil {
		u.screen.say(colorYellow, "outrigger: %s: %v", w.name, err)
	}
	for _, s := range list {
		rows = append(rows, []string{w.name, s.service, s.address})
	}
	return rows
}

// tries returns commands for the user to try: a request through the Envoys of the first workload
// and of another service, and commands for inspection.
func (u *Mesh) tries(ctx context.Context) []string {
	first := u.mesh.workloads[0]
	target := first
	for _, w := range u.mesh.workloads {
		if w.listens() && (w.service != first.service || w.namespace != first.namespace) {
			target = w
			break
		}
	}
	host := target.service
	if target.namespace != first.namespace {
		host += "." + target.namespace
	}
	if target.servicePort != 80 {
		host += ":" + itoa(target.servicePort)
	}
	var lines []string
	if path, ok := u.servedPath(ctx, target); ok {
		lines = append(lines, fmt.Sprintf("  curl -x http://%s http://%s%s", hostPort(first.address, u.mesh.proxyPort), host, path))
	}
	if path, ok := u.servedPath(ctx, first); ok {
		lines = append(lines, fmt.Sprintf("  curl http://127.0.0.1:%d%s", first.port, path))
	}
	return append(lines,
		fmt.Sprintf("  curl http://%s/stats/prometheus", hostPort(first.address, statusPort)),
		fmt.Sprintf("  curl http://%s/clusters", hostPort(first.address, adminPort)),
	)
}

// servedPath returns a path that the application of a workload serves: / or its ready path. It
// returns false if it serves neither or does not speak HTTP/1.
func (u *Mesh) servedPath(ctx context.Context, w *workload) (string, bool) {
	if !w.listens() || w.protocol != "HTTP" {
		return "", false
	}
	for _, path := range []string{"/", w.readyPath} {
		if path != "" && answers(u.client, fmt.Sprintf("http://127.0.0.1:%d%s", w.port, path), http.StatusPermanentRedirect)(ctx) {
			return path, true
		}
	}
	return "", false
}
