// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/outrigger-mesh/outrigger/internal/clip"
)

// Bounds of what is shown of a running mesh.
const (
	observeEvery  = 5 * time.Second // Envoy updates histograms so often
	observeShare  = 3               // a pause lasts at least so many times as long as an observation
	maxTroubles   = 200             // followed at once
	maxTroubleLen = 400             // bytes
	maxLogged     = 1000            // problems of the log that are remembered
	shownServices = 8
	shownTroubles = 3
	failingShare  = 0.01 // share of failed requests from which a service is failing
	idleAfter     = 6    // observations without requests
	// Lines about changes: so many at once, and then one in each of these times.
	changeBurst = 20
	changeEvery = 3 * time.Second
)

// Watched is a running mesh.
type Watched struct {
	// Control is the debug address of the control plane.
	Control string
	// Service returns the service of a workload, or the workload if it is none of the mesh file.
	Service func(workload, namespace string) string
}

// Observer watches a running mesh through its control plane and its agents.
type Observer interface {
	// Observe returns what happens in the mesh. One goroutine calls it.
	Observe(ctx context.Context) Observation
	// Serve serves the dashboard until ctx is done.
	Serve(ctx context.Context, listener net.Listener) error
}

// Observation is what an observer sees of a mesh.
type Observation struct {
	Services []Service
	Troubles []Trouble
}

// Service is the traffic to a service since the last observation.
type Service struct {
	Name             string
	Requests, Failed float64
	Rate             float64 // requests a second
	P99              float64 // milliseconds; 0 if it is not known
}

// Trouble is something that is wrong.
type Trouble struct {
	Warning bool
	// Workload is the workload whose agent has it; "" if it is not about an agent.
	Workload string
	// Kind, Namespace and Name are those of the object that it is about, and Source is the file and the line
	// of that; all may be empty.
	Kind, Namespace, Name, Source string
	// Text says what is wrong, without values that change by themselves, and Cure what to do.
	Text, Cure string
}

// live is what is known of the troubles of a running mesh.
type live struct {
	mu     sync.Mutex           // guards the fields below
	down   map[string]string    // what ended and is not ready again, by part
	agents map[string]time.Time // when the agents of workloads ended or became ready, zero while they are down
	logged map[string][]string  // problems that the control plane has logged, by object
	count  int                  // of logged
}

// part follows the processes.
func (l *live) part(p *part, e event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down == nil {
		l.down, l.agents = map[string]string{}, map[string]time.Time{}
	}
	now, name := time.Now(), owner(p.name)+"the "+string(p.role)
	switch e.kind {
	case eventEnded:
		l.down[name] = fmt.Sprintf("%s at %s", e.exit, now.Format(time.TimeOnly))
		now = time.Time{}
	case eventReady:
		delete(l.down, name)
	default:
		return
	}
	if p.role == roleAgent {
		l.agents[p.name] = now
	}
}

// ran reports whether the agent of a workload has run since a time, as those do that this mesh did not start.
func (l *live) ran(workload string, since time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, known := l.agents[workload]
	return !known || !at.IsZero() && at.Before(since)
}

// objectOf returns a key for an object.
func objectOf(kind, namespace, name string) string { return kind + "/" + namespace + "/" + name }

// log follows the problems in the log of the control plane, which are shown when they are logged.
func (l *live) log(attrs map[string]string, gone bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.logged == nil {
		l.logged = map[string][]string{}
	}
	object, reason := objectOf(attrs["kind"], attrs["namespace"], attrs["name"]), attrs["reason"]
	of := l.logged[object]
	switch known := slices.Contains(of, reason); {
	case gone && known:
		l.remove(object, reason)
	case !gone && !known && l.count < maxLogged:
		l.count++
		l.logged[object] = append(of, reason)
	}
}

// said reports whether the control plane has logged a trouble, and not that it is gone.
func (l *live) said(t Trouble) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(l.logged[objectOf(t.Kind, t.Namespace, t.Name)], t.logged)
}

// forget forgets what was logged of a trouble that is gone: the log does not always say so.
func (l *live) forget(t Trouble) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := objectOf(t.Kind, t.Namespace, t.Name)
	for _, reason := range l.logged[key] {
		if t.logged(reason) {
			l.remove(key, reason)
		}
	}
}

// remove removes a problem of an object. The caller holds mu.
func (l *live) remove(object, reason string) {
	l.count--
	l.logged[object] = slices.DeleteFunc(slices.Clone(l.logged[object]), func(r string) bool { return r == reason })
	if len(l.logged[object]) == 0 {
		delete(l.logged, object)
	}
}

// logged reports whether a problem in the log is the trouble. The log has it in other punctuation and with
// its cure, or in other words about the same field.
func (t Trouble) logged(reason string) bool {
	path, _, field := strings.Cut(t.Text, ": ")
	return strings.HasPrefix(letters(reason), letters(strings.TrimPrefix(t.Text, "The object "))) ||
		field && strings.HasPrefix(path, "spec.") && strings.HasPrefix(reason, path+": ")
}

// letters returns the letters and digits of a text, in lower case.
func letters(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			return unicode.ToLower(r)
		}
		return -1
	}, text)
}

// ended returns what is down, by part.
func (l *live) ended() map[string]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.down)
}

// watch shows what happens in the mesh, until ctx is done.
func (u *Mesh) watch(ctx context.Context, s *state) error {
	if u.cfg.Observe == nil {
		return nil
	}
	o := u.cfg.Observe(Watched{Control: hostPort(u.mesh.controlAddress(), controlMonitorPort), Service: u.mesh.serviceOf})
	var group errgroup.Group
	if u.cfg.Open {
		group.Go(func() error { u.openDashboard(ctx, o); return nil })
	}
	w := watcher{mesh: u, state: s, limit: rate.NewLimiter(rate.Every(changeEvery), changeBurst), known: map[string]problem{}, failing: map[string]int{}}
	for pause := time.Duration(0); ; {
		select {
		case <-ctx.Done():
			return group.Wait()
		case <-time.After(pause):
		}
		began := time.Now()
		seen := o.Observe(ctx)
		if ctx.Err() != nil {
			continue
		}
		w.show(seen, began)
		pause = max(cmp.Or(u.cfg.observeEvery, observeEvery), observeShare*time.Since(began))
	}
}

// openDashboard serves the dashboard and opens it in a browser. The mesh runs on if that fails.
func (u *Mesh) openDashboard(ctx context.Context, o Observer) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		u.screen.say(colorRed, "outrigger: the dashboard cannot be served: %v", err)
		return
	}
	page := "http://" + listener.Addr().String() + "/"
	u.screen.say(colorGreen, "outrigger: the dashboard is at %s", page)
	go func() { // a browser may run longer than the mesh
		if err := Browse(u.cfg.Environ, page); err != nil && ctx.Err() == nil {
			u.screen.say(colorYellow, "outrigger: %v", err)
		}
	}()
	if err := o.Serve(ctx, listener); err != nil && ctx.Err() == nil {
		u.screen.say(colorRed, "outrigger: the dashboard has ended: %v", err)
	}
}

// serviceOf returns the service of a workload.
func (m *meshFile) serviceOf(name, namespace string) string {
	several := slices.ContainsFunc(m.workloads, func(w *workload) bool { return w.namespace != m.workloads[0].namespace })
	for _, w := range m.workloads {
		if w.namespace == namespace && (w.name == name || w.service == name) {
			name = w.service
			break
		}
	}
	if several && namespace != "" {
		name += "." + namespace
	}
	return name
}

// watcher compares observations.
type watcher struct {
	mesh    *Mesh
	state   *state
	limit   *rate.Limiter // of lines
	omitted int           // lines
	known   map[string]problem
	failing map[string]int // how many observations a failing service has been without requests, by its name
}

// problem is a trouble as it is shown.
type problem struct {
	Trouble
	color string
	where string // the beginning of its lines
	said  bool   // the log of the control plane had it first
}

func (p problem) line() colored {
	return colored{p.color, clip.Text(strings.TrimSpace(p.where+p.Text+" "+p.Cure), maxTroubleLen)}
}

// show shows what an observation has that began at a time, and the one before did not.
func (w *watcher) show(seen Observation, began time.Time) {
	now, order := map[string]problem{}, []string(nil)
	for _, t := range seen.Troubles {
		if len(now) == maxTroubles {
			break
		}
		if t.Workload != "" && !w.mesh.live.ran(t.Workload, began) {
			continue // its end was shown
		}
		key := objectOf(t.Kind, t.Namespace, t.Name) + "\x00" + t.Workload + "\x00" + t.Text
		if _, twice := now[key]; twice {
			continue
		}
		one := problem{Trouble: t, color: colorRed, where: w.mesh.about(w.state, map[string]string{"source": t.Source, "kind": t.Kind, "namespace": t.Namespace, "name": t.Name})}
		if t.Workload != "" {
			one.where += owner(t.Workload)
		}
		if t.Warning {
			one.color = colorYellow
		}
		known, old := w.known[key]
		if one.said = known.said; !old {
			one.said = w.mesh.live.said(t)
		}
		if now[key], order = one, append(order, key); !old && !one.said {
			w.say(one.color, "%s", one.line().text)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(w.known)) {
		one := w.known[key]
		if _, still := now[key]; still || one.said && !w.mesh.live.said(one.Trouble) {
			continue // or the log has also said that it is gone
		}
		w.say(colorGreen, "resolved: %s", clip.Text(one.where+one.Text, maxTroubleLen))
	}
	for key, one := range w.known {
		if _, still := now[key]; !still {
			w.mesh.live.forget(one.Trouble)
		}
	}
	w.known = now
	w.services(seen.Services)
	w.mesh.screen.setStatus(w.status(seen.Services, order))
}

// services says which services begin to fail requests, and which stop.
func (w *watcher) services(list []Service) {
	seen := map[string]Service{}
	for _, s := range list {
		seen[s.Name] = s
		_, known := w.failing[s.Name]
		switch fails := s.fails(); {
		case fails && !known && len(w.failing) < maxTroubles:
			w.failing[s.Name] = 0
			w.say(colorRed, "%s: %.0f of %.0f requests fail: outrigger tap --status 0,5xx shows them", s.Name, s.Failed, s.Requests)
		case fails:
			w.failing[s.Name] = 0
		case known && s.Requests > 0:
			delete(w.failing, s.Name)
			w.say(colorGreen, "%s: requests succeed again", s.Name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.failing)) {
		if seen[name].Requests > 0 {
			continue
		}
		if w.failing[name]++; w.failing[name] == idleAfter {
			delete(w.failing, name)
			w.say("", "%s: no more requests since some failed", name)
		}
	}
}

func (s Service) fails() bool { return s.failing() > 0 }

// failing returns the share of failed requests, or 0 if it is small.
func (s Service) failing() float64 {
	if s.Failed > 0 && s.Failed >= failingShare*s.Requests {
		return s.Failed / s.Requests
	}
	return 0
}

// say shows a line about a change, unless there are too many.
func (w *watcher) say(color, format string, args ...any) {
	if !w.limit.Allow() {
		w.omitted++
		return
	}
	if w.omitted > 0 {
		w.mesh.screen.say("", "outrigger: %d changes were not shown: outrigger status, analyze and top show what is so now", w.omitted)
		w.omitted = 0
	}
	w.mesh.screen.say(color, "outrigger: "+format, args...)
}

// status returns the status lines: services with their rates, and below them what is wrong. They take a
// third of the terminal, or five lines.
func (w *watcher) status(services []Service, order []string) (lines []colored) {
	var wrong []colored
	down := w.mesh.live.ended()
	for _, name := range slices.Sorted(maps.Keys(down)) {
		wrong = append(wrong, colored{colorRed, name + " " + down[name]})
	}
	for _, key := range order {
		wrong = append(wrong, w.known[key].line())
	}
	height, _ := w.mesh.screen.size()
	room := max(5, height/3)
	more := len(wrong) - min(shownTroubles, room/2)
	if more > 1 {
		wrong = append(wrong[:len(wrong)-more:len(wrong)-more], colored{colorRed, fmt.Sprintf("and %d more problems: outrigger status and analyze show them", more)})
	}
	room = min(room-len(wrong)-1, shownServices)
	list := slices.DeleteFunc(slices.Clone(services), func(s Service) bool { return s.Requests == 0 })
	slices.SortFunc(list, func(a, b Service) int { // if there are many, those that fail are shown
		return cmp.Or(cmp.Compare(b.failing(), a.failing()), cmp.Compare(b.Rate, a.Rate), strings.Compare(a.Name, b.Name))
	})
	if len(list) == 0 {
		return append([]colored{{colorGrey, "no requests in the last seconds"}}, wrong...)
	}
	left := len(list) - max(room, 0)
	if left > 0 {
		list = list[:len(list)-left]
	}
	slices.SortFunc(list, func(a, b Service) int { return strings.Compare(a.Name, b.Name) })
	heading := fmt.Sprintf("%-24s %9s %9s %9s", "SERVICE", "REQ/S", "SUCCESS", "P99")
	if left > 0 {
		heading += fmt.Sprintf("   and %d more services", left)
	}
	lines = append(lines, colored{colorGrey, heading})
	for _, s := range list {
		color, p99 := "", "-"
		if s.fails() {
			color = colorRed
		}
		if s.P99 > 0 {
			p99 = fmt.Sprintf("%.0f ms", s.P99)
		}
		lines = append(lines, colored{color, fmt.Sprintf("%-24s %9.1f %8.2f%% %9s", shorten(s.Name, 24), s.Rate, 100*(1-s.Failed/s.Requests), p99)})
	}
	return append(lines, wrong...)
}
