// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package analyze

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"flag"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden files")

// analyzed returns the result for the text of files of testdata, beside base.yaml.
func analyzed(t *testing.T, names ...string) Result {
	t.Helper()
	certificate, key, other := pair(t)
	replace := strings.NewReplacer("CERTIFICATE", certificate, "PRIVATE-KEY", key, "OTHER-KEY", other)
	var files []File
	for _, name := range append([]string{"base.yaml"}, names...) {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, File{name, []byte(replace.Replace(string(text)))})
	}
	read := Read(nil, files, "", false)
	in := Input{Objects: read.Objects, Problems: read.Problems, Manifests: read.Manifests}
	in.Build(nil)
	return Run(in)
}

// pair returns a certificate, its key and another key, as strings of YAML.
func pair(t *testing.T) (certificate, key, other string) {
	t.Helper()
	var keys [2]*ecdsa.PrivateKey
	var texts [2]string
	for i := range keys {
		var err error
		if keys[i], err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			t.Fatal(err)
		}
		raw, err := x509.MarshalPKCS8PrivateKey(keys[i])
		if err != nil {
			t.Fatal(err)
		}
		texts[i] = strconv.Quote(string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})))
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<32, 0)}
	raw, err := x509.CreateCertificate(rand.Reader, template, template, keys[0].Public(), keys[0])
	if err != nil {
		t.Fatal(err)
	}
	return strconv.Quote(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}))), texts[0], texts[1]
}

// golden returns findings as text.
func golden(r Result) string {
	var b strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%s %s %s %s\n  %s\n  %s\n", f.Severity, f.Code, f.Object, f.Source, f.Message, f.Cure)
	}
	return b.String()
}

// TestChecks plants one mistake for each code, and compares its findings with a golden file. The
// healthy twin of the mistake has no finding of the code.
func TestChecks(t *testing.T) {
	t.Parallel()
	for _, c := range Checks() {
		if c.Absent != "" {
			if c.About != "" || Known(c.Code) {
				t.Errorf("%s is absent, but is known or says when it is reported", c.Code)
			}
			continue
		}
		t.Run(c.Code, func(t *testing.T) {
			t.Parallel()
			of := func(f Finding) bool { return f.Code == c.Code }
			bad := analyzed(t, c.Code+".yaml")
			if !slices.ContainsFunc(bad.Findings, of) {
				t.Errorf("the mistake is not found:\n%s", golden(bad))
			}
			if healthy := analyzed(t, c.Code+".healthy.yaml"); slices.ContainsFunc(healthy.Findings, of) {
				t.Errorf("the healthy twin has a finding:\n%s", golden(healthy))
			} else if slices.ContainsFunc(healthy.Findings, func(f Finding) bool { return f.Severity == Error }) {
				t.Errorf("the healthy twin has an error:\n%s", golden(healthy))
			}
			file := filepath.Join("testdata", c.Code+".golden")
			if *update {
				if err := os.WriteFile(file, []byte(golden(bad)), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got := golden(bad); got != string(want) {
				t.Errorf("the findings are\n%swant\n%s", got, want)
			}
		})
	}
}

// TestConnectedWorkloads adds connected proxies to the workloads of the objects, each once.
func TestConnectedWorkloads(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("testdata", "base.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	read := Read(nil, []File{{"base.yaml", text}}, "", false)
	in := Input{Objects: read.Objects, Manifests: read.Manifests, Workloads: []Workload{
		{Namespace: "shop", Name: "web", Labels: map[string]string{"app": "web", "claimed": "too"}},
		{Namespace: "shop", Name: "client", Labels: map[string]string{"app": "client"}},
	}}
	in.Build(nil)
	a := newAnalysis(in)
	if len(a.selected("shop", map[string]string{"app": "web"})) != 1 || len(a.selected("", map[string]string{"app": "client"})) != 1 || a.workloads.size() != 2 {
		t.Errorf("there are %d workloads, want 2", a.workloads.size())
	}
}
