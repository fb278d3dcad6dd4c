// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package analyze

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/config/codec"
	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/snapshot"
)

// MaxFindings is the maximum number of findings in a result.
const MaxFindings = 5000

// Severity orders findings.
type Severity string

// The severities, the worst first.
const (
	Error   Severity = "error"
	Warning Severity = "warning"
	Info    Severity = "info"
)

// Rank returns 0 for an error, 1 for a warning, 2 for an info.
func (s Severity) Rank() int { return slices.Index(Severities(), s) }

// Severities returns all severities, the worst first.
func Severities() []Severity { return []Severity{Error, Warning, Info} }

// Object names the object of a finding, by its kind as in YAML.
type Object struct {
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// String returns kind/namespace/name, without the parts that are empty.
func (o Object) String() string {
	parts := slices.DeleteFunc([]string{o.Kind, o.Namespace, o.Name}, func(s string) bool { return s == "" })
	return strings.Join(parts, "/")
}

// Finding is one mistake, or one suspicion.
type Finding struct {
	Code     string   `json:"code"`
	Severity Severity `json:"severity"`
	Object   Object   `json:"object"`
	// Source is the file and the line, empty for an object of a store without files.
	Source string `json:"source,omitempty"`
	// Message is a sentence that says what is wrong, Cure one that says what to do.
	Message string `json:"message"`
	Cure    string `json:"cure"`
}

// about is what two findings about the same have in common, wherever their objects come from.
type about struct {
	code, message string
	object        Object
}

func (f Finding) about() about { return about{f.Code, f.Message, f.Object} }

// Change is a change of stored objects.
type Change struct {
	Objects string      // those that are written, as YAML
	Created []model.Key // those of them that the store does not have
	Deleted []model.Key
}

// ErrNoControl means that no control plane is known that could analyze objects.
var ErrNoControl = errors.New("no control plane is known")

// DeniesAll reports whether the finding is about a policy that lets no request through.
func (f Finding) DeniesAll() bool {
	return f.Code == "OUT0002" || f.Code == "OUT0003" || f.Code == "OUT0020"
}

// Result is the result of an analysis.
type Result struct {
	Findings []Finding `json:"findings"`
	// Compared means that the findings are those of a change, see [Compare].
	Compared bool `json:"compared,omitempty"`
	// Unlisted is the number of findings above [MaxFindings], and Errors, Warnings and Infos are those
	// of all of them by severity.
	Unlisted int `json:"unlisted,omitempty"`
	// Objects is the number of analyzed objects, Skipped that of objects that no check uses.
	Objects int `json:"objects"`
	Skipped int `json:"skipped"`
	// Unchecked says what could not be checked, and why.
	Unchecked []string `json:"unchecked,omitempty"`
}

// Workload is a process that serves or sends requests: a pod, the template of one, a WorkloadEntry, a
// connected proxy.
type Workload struct {
	Namespace, Name string
	Labels          map[string]string
}

// Input is one state of a mesh.
type Input struct {
	// Mesh is the snapshot of the objects.
	Mesh *snapshot.Mesh
	// Objects are the objects that users wrote.
	Objects []*model.Config
	// Status are the statuses of objects of the Gateway API that the control plane would write, and
	// Origin the objects that others of Mesh were made from. Both may be nil.
	Status map[model.Key]any
	Origin map[model.Key]model.Key
	// Problems are those of reading the objects.
	Problems []model.Problem
	// Workloads are known in addition to those of Mesh, Objects and Manifests.
	Workloads []Workload
	// Manifests are objects of Kubernetes; nil means that none are known.
	Manifests *Manifests
	// AssumedMesh means that the mesh config of Mesh is a guess, so that providers are unknown.
	AssumedMesh bool
	// Complete means that an object, a service or a workload that is not in the input does not exist.
	Complete bool
	// Partial means that Objects are all objects of some kinds only: nothing is known about services,
	// workloads, Gateways and settings.
	Partial bool
	// Credential returns an error if a Secret is not a valid certificate with its key. The error wraps
	// credentials.ErrNotFound if it does not exist. A nil function means that only the Secrets of
	// Manifests are known.
	Credential func(namespace, name string) error
}

// analysis is the state of one Run.
type analysis struct {
	Input
	kinds     map[model.Kind][]*model.Config
	workloads *workloads
	byName    map[model.Key]bool
	found     []Finding
	unchecked []string
	// providers is true if objects name extension providers.
	providers bool
	// Indexes that are made when they are first needed.
	httpRouted map[hostPort]bool
	ports      map[string][]workloadPort
	podPorts   map[objectName][]uint32
	ofPods     map[string]*namespace      // by name
	secretsOf  map[string]string          // namespace by name
	roots      map[string][]*model.Config // by the name of a delegate
	atGateway  map[string][]string        // namespaces by the name of a Gateway
	reasons    map[Object][]string
	// steps counts the entries of indexes that the checks looked at.
	steps int
}

// Run analyzes one state of a mesh. The findings are sorted: errors first, then by source.
func Run(in Input) Result {
	a := newAnalysis(in)
	a.run()
	return a.result(nil)
}

// Compare analyzes the state that follows a change. The findings are those that the state before the
// change does not have.
func Compare(before, after Input) Result {
	a, b := newAnalysis(after), newAnalysis(before)
	a.run()
	b.run()
	known := map[about]bool{}
	for _, f := range b.found {
		known[f.about()] = true
	}
	r := a.result(known)
	r.Compared = true
	return r
}

func newAnalysis(in Input) *analysis {
	if in.Manifests == nil {
		in.Manifests = &Manifests{}
	}
	a := &analysis{Input: in, kinds: map[model.Kind][]*model.Config{}}
	for _, c := range in.Objects {
		a.kinds[c.Kind] = append(a.kinds[c.Kind], c)
	}
	for _, list := range a.kinds {
		slices.SortStableFunc(list, model.Older)
	}
	a.workloads = &workloads{}
	if !in.Partial {
		a.workloads = a.collectWorkloads()
	}
	return a
}

func (a *analysis) run() {
	a.problems()
	a.deprecated()
	a.virtualServices()
	a.destinationRules()
	a.wildcardRules()
	a.gateways()
	a.serviceEntries()
	a.selectors()
	a.targets()
	a.authorizationPolicies()
	a.refusals()
	a.portModes()
	a.unrequired()
	a.probes()
	a.oneOfNamespace()
	a.sidecars()
	a.telemetries()
	a.envoyFilters()
	a.services()
	a.pods()
	a.namespaces()
	a.annotations()
	a.webhooks()
	a.conditions()
	a.gaps()
}

// gaps records what the input is too small for.
func (a *analysis) gaps() {
	if !a.servicesKnown() {
		a.unchecked = append(a.unchecked, "hosts, ports and subsets of destinations: no Service or ServiceEntry is known")
	}
	if a.workloads.size() == 0 {
		a.unchecked = append(a.unchecked, "selectors of workloads: no pod, Deployment or WorkloadEntry is known")
	}
	if !a.gatewaysKnown() {
		a.unchecked = append(a.unchecked, "references to Gateways: no Gateway and no service is known")
	}
	if a.AssumedMesh && a.providers {
		a.unchecked = append(a.unchecked, "extension providers: the mesh config is not known")
	}
	if a.Credential == nil && len(a.Manifests.secrets) == 0 && len(a.kinds[model.Gateway]) > 0 {
		a.unchecked = append(a.unchecked, "credentials of gateways: no Secret is known")
	}
}

// servicesKnown reports whether a host without a service is a mistake, and not only a service that
// the input leaves out.
func (a *analysis) servicesKnown() bool {
	return !a.Partial && (a.Complete || len(a.Mesh.Services.Sorted) > 0)
}

// gatewaysKnown reports whether a Gateway that is not there is a mistake.
func (a *analysis) gatewaysKnown() bool {
	return !a.Partial && (a.servicesKnown() || len(a.kinds[model.Gateway]) > 0 || len(a.kinds[model.VirtualService]) == 0)
}

// result sorts the findings and drops those that are known, or there twice.
func (a *analysis) result(known map[about]bool) Result {
	a.found = slices.DeleteFunc(a.found, func(f Finding) bool { return known[f.about()] })
	slices.SortStableFunc(a.found, func(x, y Finding) int {
		return cmp.Or(cmp.Compare(x.Severity.Rank(), y.Severity.Rank()), compareSources(x.Source, y.Source),
			strings.Compare(x.Object.String(), y.Object.String()), strings.Compare(x.Code, y.Code), strings.Compare(x.Message, y.Message))
	})
	a.found = slices.CompactFunc(a.found, func(x, y Finding) bool { return x.about() == y.about() })
	r := Result{Findings: a.found, Objects: len(a.Objects) + a.Manifests.size(), Unchecked: a.unchecked}
	if r.Findings == nil {
		r.Findings = []Finding{}
	}
	if len(r.Findings) > MaxFindings {
		r.Unlisted = len(r.Findings) - MaxFindings
		r.Findings = r.Findings[:MaxFindings]
	}
	return r
}

// compareSources compares sources by file, then by line as a number.
func compareSources(a, b string) int {
	fileA, lineA := splitSource(a)
	fileB, lineB := splitSource(b)
	return cmp.Or(strings.Compare(fileA, fileB), cmp.Compare(lineA, lineB))
}

func splitSource(s string) (file string, line int) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return s, 0
	}
	if _, err := fmt.Sscanf(s[i+1:], "%d", &line); err != nil {
		return s, 0
	}
	return s[:i], line
}

// report adds a finding about an object of the mesh.
func (a *analysis) report(code string, c *model.Config, message, cure string) {
	a.add(code, ObjectOf(c.Key), c.Source, message, cure)
}

// path matches the field that a message begins with.
var path = regexp.MustCompile(`^spec(?:\.\w+|\[[^\]]*\])+`)

// add adds a finding. The severity is that of its code, the source that of the field that the message
// begins with, if it is known.
func (a *analysis) add(code string, o Object, source, message, cure string) {
	if n := a.Manifests.nodes[place{o, source}]; n != nil {
		if at := path.FindString(message); at != "" {
			file, _ := splitSource(source)
			source = fmt.Sprintf("%s:%d", file, codec.Line(n, at))
		}
	}
	a.found = append(a.found, Finding{Code: code, Severity: severityOf(code), Object: o, Source: source, Message: message, Cure: cure})
}

// ObjectOf returns the object with a key.
func ObjectOf(key model.Key) Object {
	kind := string(key.Kind)
	if sch, ok := schema.Of(key.Kind); ok {
		kind = sch.Name
	}
	return Object{Kind: kind, Namespace: key.Namespace, Name: key.Name}
}

// spec returns the spec of an object as its type, or nil.
func specOf[T any](c *model.Config) *T {
	spec, _ := c.Spec.(*T)
	return spec
}

// each calls f for all objects of a kind with a spec of its type.
func each[T any](a *analysis, kind model.Kind, f func(c *model.Config, spec *T)) {
	for _, c := range a.kinds[kind] {
		if spec := specOf[T](c); spec != nil {
			f(c, spec)
		}
	}
}

// names joins names for a sentence, at most three of them.
func names(list []string) string {
	const most = 3
	if len(list) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
	}
	return strings.Join(list, ", ")
}

// nameOf returns namespace/name of an object.
func nameOf(c *model.Config) string { return c.Namespace + "/" + c.Name }
