// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Names and ports shared by the parts of a mesh.
const (
	rootNamespace    = "istio-system"
	clusterDomain    = "cluster.local"
	controlName      = "control"
	workloadLabel    = "outrigger.mesh/workload"
	appLabel         = "app"
	defaultNamespace = "default"
	defaultNetwork   = "127.1.0.0/24"

	// proxyPortSetting is the MeshConfig field that sets the port of outbound HTTP.
	proxyPortSetting = "proxyHttpPort"

	controlHTTPPort    = 8080
	controlSecurePort  = 15012
	controlMonitorPort = 15014

	adminPort      = 15000
	debugPort      = 15004
	statusPort     = 15020
	healthPort     = 15021
	prometheusPort = 15090
	proxyHTTPPort  = 15080
	dnsPort        = 15053
)

// meshFile is a validated mesh file with defaults.
type meshFile struct {
	file        string         // absolute path
	lines       map[string]int // line numbers of the fields that are set
	configDir   string         // absolute path, or "" for none
	newConfig   bool           // configDir does not exist yet
	trustDomain string
	settings    map[string]any // the user's MeshConfig
	// settingLines holds the line numbers of the fields of settings.
	settingLines map[string]int
	proxyPort    int // settings.proxyHttpPort or its default
	network      netip.Prefix
	workloads    []*workload
	isolated     bool // each workload has its own network namespace
	described    bool // nothing will be started, so the commands need not exist
	// inside returns the address of a workload in its namespace; nil if there is none.
	inside func(netip.Addr) netip.Addr
}

// workload is an entry in the list of workloads.
type workload struct {
	line           int
	where          string         // identifies the workload in messages
	lines          map[string]int // line numbers of the fields that are set
	name           string
	namespace      string
	service        string
	serviceAccount string
	labels         map[string]string
	command        []string // before expansion
	env            []variable
	dir            string
	port           int
	servicePort    int
	protocol       string
	address        netip.Addr
	readyPath      string
}

// variable is an environment variable.
type variable struct{ name, value string }

// listens reports whether the application serves a port. One that does not is a client only and not
// an endpoint of any service.
func (w *workload) listens() bool { return w.port > 0 }

// lineOf returns the line of a field, or of the workload if the field is not set.
func (w *workload) lineOf(field string) int {
	if l, ok := w.lines[field]; ok {
		return l
	}
	return w.line
}

// selector returns labels that match only this workload.
func (w *workload) selector() map[string]string {
	return map[string]string{workloadLabel: w.name}
}

// controlAddress returns the address of the control plane, the first of the network.
func (m *meshFile) controlAddress() netip.Addr { return m.network.Addr().Next() }

// addressOf returns the address that a workload has for itself and for other workloads.
func (m *meshFile) addressOf(w *workload) netip.Addr {
	if m.inside == nil {
		return w.address
	}
	return m.inside(w.address)
}

// dir returns the directory of the mesh file.
func (m *meshFile) dir() string { return filepath.Dir(m.file) }

// Problem is an error in a mesh file or on the machine that is to run it.
type Problem struct {
	// Line is the line in the mesh file, or 0 if the problem has none.
	Line int
	// Text is a sentence that names the field, the value and the cure.
	Text string
	// Err is why the mesh file cannot be read; nil for other problems.
	Err error
}

// Invalid is the error for a mesh that cannot be started. Its text lists all problems.
type Invalid struct {
	File     string
	Problems []Problem
}

// Error lists the problems, one per line.
func (e *Invalid) Error() string {
	var b strings.Builder
	noun := "problems"
	if len(e.Problems) == 1 {
		noun = "problem"
	}
	fmt.Fprintf(&b, "nothing was started: %d %s", len(e.Problems), noun)
	for _, p := range e.Problems {
		b.WriteString("\n  ")
		if p.Line > 0 {
			fmt.Fprintf(&b, "%s:%d: ", e.File, p.Line)
		}
		b.WriteString(p.Text)
	}
	return b.String()
}

// Unwrap returns why the mesh file cannot be read, if that is the problem.
func (e *Invalid) Unwrap() (list []error) {
	for _, p := range e.Problems {
		if p.Err != nil {
			list = append(list, p.Err)
		}
	}
	return list
}

// maxMeshFile is the maximum size of a mesh file in bytes, much larger than any handwritten file.
const maxMeshFile = 4 << 20

func readLimited(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxMeshFile+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if len(data) > maxMeshFile {
		return nil, fmt.Errorf("%s is larger than %d MB, the limit of a mesh file", path, maxMeshFile>>20)
	}
	return data, nil
}

// load reads and validates a mesh file. The mesh is complete only if there are no problems.
func load(path string, isolated bool) (*meshFile, []Problem) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, []Problem{{Text: err.Error()}}
	}
	data, err := readLimited(abs)
	if err != nil {
		return nil, []Problem{{Text: fmt.Sprintf("%v; name a mesh file with -f, for example -f examples/shop/mesh.yaml", err), Err: err}}
	}
	m, problems := decode(data)
	if m == nil {
		return nil, problems
	}
	m.file, m.isolated = abs, isolated
	problems = append(problems, m.complete()...)
	slices.SortStableFunc(problems, func(a, b Problem) int { return a.Line - b.Line })
	return m, problems
}
