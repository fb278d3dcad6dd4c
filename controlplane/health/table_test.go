// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package health

import (
	"bytes"
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// entryOf parses an entry of the form "namespace/name account address".
func entryOf(line string) *model.Config {
	var ref, account, address string
	_, _ = fmt.Sscan(line, &ref, &account, &address) // the last fields are optional
	namespace, name, _ := strings.Cut(ref, "/")
	return &model.Config{
		Key:  model.Key{Kind: model.WorkloadEntry, Namespace: namespace, Name: name},
		Spec: &networkingv1alpha3.WorkloadEntry{Address: address, ServiceAccount: strings.Trim(account, "-")},
	}
}

func entriesOf(lines ...string) []*model.Config {
	var out []*model.Config
	for _, line := range lines {
		out = append(out, entryOf(line))
	}
	return out
}

// bench is a table with its log and the changes that it reported.
type bench struct {
	*Table
	told   []string
	logged bytes.Buffer
	reg    *prometheus.Registry
}

func newBench(t *testing.T, lines ...string) *bench {
	t.Helper()
	b := &bench{reg: prometheus.NewRegistry()}
	var err error
	b.Table, err = New(Config{
		OnChange:   func(c model.Change) { b.told = append(b.told, names(c.Keys)) },
		Logger:     slog.New(slog.NewTextHandler(&b.logged, nil)),
		Registerer: b.reg,
	})
	if err != nil {
		t.Fatal(err)
	}
	b.Update(entriesOf(lines...))
	return b
}

func names(keys map[model.Key]struct{}) string {
	out := []string{}
	for k := range keys {
		out = append(out, k.Namespace+"/"+k.Name)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// want compares the entries that are out of service and the metric.
func (b *bench) want(t *testing.T, what, list string) {
	t.Helper()
	if got := names(b.Unhealthy()); got != list {
		t.Errorf("%s: out of service: got %q, want %q", what, got, list)
	}
	metric := fmt.Sprintf("# HELP outrigger_control_unhealthy_workloads Workload entries that are out of service because their agents report an unhealthy application.\n"+
		"# TYPE outrigger_control_unhealthy_workloads gauge\noutrigger_control_unhealthy_workloads %d\n", len(strings.Fields(list)))
	if err := testutil.GatherAndCompare(b.reg, strings.NewReader(metric)); err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

func proxyAt(ips ...string) *model.Proxy {
	return &model.Proxy{ID: "vm.shop", Namespace: "shop", ServiceAccount: "web", IPs: ips}
}

func TestReportedEntries(t *testing.T) {
	t.Parallel()
	entries := []string{
		"shop/web-1 web 10.0.0.1", "shop/web-1b web 10.0.0.1", "shop/web-2 web 10.0.0.2", "shop/db-1 db 10.0.0.1", "shop/none-1 - 10.0.0.1",
		"other/web-1 web 10.0.0.1", "shop/six web 2001:db8:0::1", "shop/mapped web ::ffff:10.0.0.6", "shop/name web vm.example.com",
		"shop/group-10.0.0.9 web 10.0.0.99", "shop/group-10.0.0.9-net web 10.0.0.98", "shop/group-2001-db8--9 web 10.0.0.97", "shop/unset web",
	}
	with := func(change func(*model.Proxy), ips ...string) *model.Proxy {
		p := proxyAt(ips...)
		change(p)
		return p
	}
	for name, tc := range map[string]struct {
		proxy *model.Proxy
		want  string
	}{
		"an address":                           {proxyAt("10.0.0.2"), "shop/web-2"},
		"an address of two entries":            {proxyAt("10.0.0.1"), "shop/web-1 shop/web-1b"},
		"two addresses":                        {proxyAt("10.0.0.2", "10.0.0.1", "10.0.0.2"), "shop/web-1 shop/web-1b shop/web-2"},
		"no entry":                             {proxyAt("10.0.0.77"), ""},
		"another notation":                     {proxyAt("2001:DB8::0:1", "10.0.0.6"), "shop/mapped shop/six"},
		"no address":                           {proxyAt("vm.example.com"), ""},
		"another namespace":                    {with(func(p *model.Proxy) { p.Namespace = "other" }, "10.0.0.1"), "other/web-1"},
		"another account":                      {with(func(p *model.Proxy) { p.ServiceAccount = "db" }, "10.0.0.1", "10.0.0.2"), "shop/db-1"},
		"no account":                           {with(func(p *model.Proxy) { p.ServiceAccount = "" }, "10.0.0.1"), "shop/none-1"},
		"a name":                               {with(func(p *model.Proxy) { p.WorkloadEntry = "name" }, "10.0.0.1"), "shop/name"},
		"a missing name":                       {with(func(p *model.Proxy) { p.WorkloadEntry = "nobody" }, "10.0.0.1"), ""},
		"a name with another account":          {with(func(p *model.Proxy) { p.WorkloadEntry = "db-1" }, "10.0.0.1"), ""},
		"a group":                              {with(func(p *model.Proxy) { p.AutoRegisterGroup = "group" }, "10.0.0.9"), "shop/group-10.0.0.9"},
		"a group and a network":                {with(func(p *model.Proxy) { p.AutoRegisterGroup, p.Network = "group", "net" }, "10.0.0.9"), "shop/group-10.0.0.9-net"},
		"a group and another network":          {with(func(p *model.Proxy) { p.AutoRegisterGroup, p.Network = "group", "x" }, "10.0.0.9"), "shop/group-10.0.0.9"},
		"a group, IPv6":                        {with(func(p *model.Proxy) { p.AutoRegisterGroup = "group" }, "2001:db8::9"), "shop/group-2001-db8--9"},
		"a group without an entry":             {with(func(p *model.Proxy) { p.AutoRegisterGroup = "group" }, "10.0.0.2"), "shop/web-2"},
		"a group with a very long net":         {with(func(p *model.Proxy) { p.AutoRegisterGroup, p.Network = "group", strings.Repeat("n", 300) }, "10.0.0.2"), "shop/web-2"},
		"a group takes precedence over a name": {with(func(p *model.Proxy) { p.WorkloadEntry, p.AutoRegisterGroup = "web-1", "group" }, "10.0.0.9"), "shop/group-10.0.0.9"},
		"a name and an unused group":           {with(func(p *model.Proxy) { p.WorkloadEntry, p.AutoRegisterGroup = "web-1", "group" }, "10.0.0.2"), "shop/web-1"},
	} {
		b := newBench(t, entries...)
		b.want(t, name+", at the start", "")
		b.Report(tc.proxy, false, "connection refused")
		b.want(t, name, tc.want)
		if (len(b.told) == 0) != (tc.want == "") || len(b.told) > 0 && b.told[0] != tc.want {
			t.Errorf("%s: reported %q, want %q", name, b.told, tc.want)
		}
		if warned := strings.Contains(b.logged.String(), "has no effect"); warned != (tc.want == "") {
			t.Errorf("%s: unexpected log: %s", name, &b.logged)
		}
		b.Report(tc.proxy, true, "")
		b.want(t, name+", healthy again", "")
	}
}

// TestRepeatedReports checks that only effective changes are reported and that the log contains the
// reason.
func TestRepeatedReports(t *testing.T) {
	t.Parallel()
	b := newBench(t, "shop/web-1 web 10.0.0.1")
	p := proxyAt("10.0.0.1")
	b.Report(p, true, "")
	if len(b.told) > 0 || b.logged.Len() > 0 {
		t.Errorf("reported %q and logged %s, want nothing", b.told, &b.logged)
	}
	b.Report(p, false, "connection refused")
	b.Report(p, false, "another reason")
	b.Report(proxyAt("10.0.0.1"), false, "said on a new stream")
	b.Report(p, true, "")
	b.Report(p, true, "")
	if want := []string{"shop/web-1", "shop/web-1"}; !slices.Equal(b.told, want) {
		t.Errorf("reported %q, want %q", b.told, want)
	}
	lines := strings.Split(strings.TrimSpace(b.logged.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], `level=WARN`) || !strings.Contains(lines[0], `name=web-1 proxy=vm.shop reason="connection refused"`) ||
		!strings.Contains(lines[1], "level=INFO") {
		t.Errorf("log: got %q", lines)
	}
}

// TestVerdictsOutliveStreams checks that a verdict remains after the end of its stream until its
// entry is removed.
func TestVerdictsOutliveStreams(t *testing.T) {
	t.Parallel()
	const web = "shop/web-1 web 10.0.0.1"
	for name, tc := range map[string]struct {
		updates [][]string
		want    string
	}{
		"unchanged":                 {[][]string{{web}}, "shop/web-1"},
		"other entries change":      {[][]string{{web, "shop/web-2 web 10.0.0.2"}, {web}}, "shop/web-1"},
		"gone":                      {[][]string{{}}, ""},
		"deleted and created again": {[][]string{{}, {web}}, ""},
		"another address":           {[][]string{{"shop/web-1 web 10.0.0.2"}}, ""},
		"another account":           {[][]string{{"shop/web-1 db 10.0.0.1"}}, ""},
		"another object":            {[][]string{{"shop/web-3 web 10.0.0.1"}}, ""},
		"the same machine, by two":  {[][]string{{web, "shop/web-3 web 10.0.0.1"}}, "shop/web-1"},
	} {
		b := newBench(t, web)
		p := proxyAt("10.0.0.1")
		b.Report(p, false, "connection refused")
		b.Gone(p)
		for _, lines := range tc.updates {
			b.Update(entriesOf(lines...))
		}
		b.want(t, name, tc.want)
		if len(b.live) > 0 {
			t.Errorf("%s: %d streams are remembered", name, len(b.live))
		}
		b.Report(proxyAt("10.0.0.1"), true, "") // it reconnects and is healthy
		b.want(t, name+", healthy again", "")
	}
}

// TestEntryAfterReport checks that the report of an open stream applies to entries that are
// created later.
func TestEntryAfterReport(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p := proxyAt("10.0.0.1")
	b.Report(p, false, "connection refused")
	b.want(t, "no entry", "")
	b.Update(entriesOf("shop/web-1 web 10.0.0.1"))
	b.want(t, "an entry", "shop/web-1")
	b.Update(entriesOf("shop/web-1 web 10.0.0.2"))
	b.want(t, "another address", "")
	b.Update(entriesOf("shop/web-1 web 10.0.0.1"))
	b.want(t, "corrected", "shop/web-1")
	if len(b.told) > 0 {
		t.Errorf("reported %q, want nothing: the caller of Update knows its changes", b.told)
	}
	again := proxyAt("10.0.0.1")
	b.Report(again, true, "")
	b.Gone(p)
	b.want(t, "a new healthy stream", "")
	b.Update(entriesOf())
	b.logged.Reset()
	b.Report(p, false, "connection refused") // both streams are open, and p reported last
	b.Update(entriesOf("shop/web-1 web 10.0.0.1"))
	b.want(t, "the last report applies", "shop/web-1")
	b.Update(entriesOf())
	b.Report(again, true, "")
	b.logged.Reset()
	b.Update(entriesOf("shop/web-1 web 10.0.0.1"))
	b.want(t, "the last report applies, reversed", "")
	if b.logged.Len() > 0 {
		t.Errorf("unexpected log: %s", &b.logged)
	}
}

// TestHealthyWithoutEntry checks that a healthy application without an entry causes no warning.
// while healthy.
func TestHealthyWithoutEntry(t *testing.T) {
	t.Parallel()
	b := newBench(t, "shop/web-1 web 10.0.0.1")
	b.Report(proxyAt("10.0.0.2"), true, "")
	if b.logged.Len() > 0 || len(b.told) > 0 {
		t.Errorf("reported %q and logged %s, want nothing", b.told, &b.logged)
	}
}

func TestUpdateWithForeignObject(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Update([]*model.Config{nil, {}, {Spec: (*networkingv1alpha3.WorkloadEntry)(nil)}, {Spec: &networkingv1alpha3.ServiceEntry{}}})
	b.Report(&model.Proxy{AutoRegisterGroup: "group"}, false, "no address")
	b.want(t, "no usable entry", "")
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	cfg := Config{OnChange: func(model.Change) {}, Registerer: reg}
	if _, err := New(cfg); err != nil {
		t.Error(err)
	}
	if _, err := New(cfg); err == nil {
		t.Error("New accepted a registerer that already has the metric")
	}
	if _, err := New(Config{}); err == nil {
		t.Error("New accepted a configuration without a receiver of changes")
	}
}

// TestConcurrent reports from many streams while objects change, and checks that the last reports
// apply in the end.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	table, err := New(Config{OnChange: func(model.Change) {}})
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for i := range 50 {
		lines = append(lines, fmt.Sprintf("shop/web-%d web 10.0.0.%d", i, i))
	}
	table.Update(entriesOf(lines...)) // reports of a proxy that leaves before its entry exists are discarded
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			p := proxyAt(fmt.Sprintf("10.0.0.%d", i))
			for n := range 20 {
				table.Report(p, n%2 == 0, "")
				table.Unhealthy()
			}
			table.Report(p, i%2 == 0, "")
			if i%5 == 0 {
				table.Gone(p)
			}
		})
	}
	for range 20 {
		table.Update(entriesOf(lines...))
	}
	all.Wait()
	table.Update(entriesOf(lines...))
	var want []string
	for i := range 50 {
		if i%2 == 1 {
			want = append(want, fmt.Sprintf("web-%d", i))
		}
	}
	byName := func(a, b model.Key) int { return cmp.Compare(a.Name, b.Name) }
	var got []string
	for _, k := range slices.SortedFunc(maps.Keys(table.Unhealthy()), byName) {
		got = append(got, k.Name)
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("out of service: got %q, want %q", got, want)
	}
}

// BenchmarkReport measures a report in a mesh of 10,000 machines.
func BenchmarkReport(b *testing.B) {
	table, err := New(Config{OnChange: func(model.Change) {}})
	if err != nil {
		b.Fatal(err)
	}
	var lines []string
	for i := range 10_000 {
		lines = append(lines, fmt.Sprintf("shop/web-%d web 10.0.%d.%d", i, i/250, i%250))
	}
	table.Update(entriesOf(lines...))
	p := proxyAt("10.0.7.7")
	for n := 0; b.Loop(); n++ {
		table.Report(p, n%2 == 0, "")
	}
}
