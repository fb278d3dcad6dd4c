// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package bootstrap

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"flag"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/bootstrap/node"
)

var update = flag.Bool("update", false, "write the golden files")

// goldenInput is the content of testdata/<case>/in.json.
type goldenInput struct {
	ID              node.ID           `json:"id"`
	Variables       map[string]string `json:"variables"`
	Labels          map[string]string `json:"labels"`
	Annotations     map[string]string `json:"annotations"`
	Own             node.Metadata     `json:"own"`
	ProxyConfig     json.RawMessage   `json:"proxyConfig"`
	BindAddress     string            `json:"bindAddress"`
	StateOfTheWorld bool              `json:"stateOfTheWorld"`
	HostIP          string            `json:"hostIP"`
	DualStack       bool              `json:"dualStack"`
	Locality        Locality          `json:"locality"`
	PlatformLabels  map[string]string `json:"platformLabels"`
	XDSRootCert     string            `json:"xdsRootCert"`
	Template        string            `json:"template"`
	Metrics         Metrics           `json:"metrics"`
	SDSSocketName   string            `json:"sdsSocketName"`
}

func TestGolden(t *testing.T) {
	t.Parallel()
	envoy := findEnvoy()
	files, err := filepath.Glob("testdata/*/in.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden cases: %v", err)
	}
	for _, file := range files {
		dir := filepath.Dir(file)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			got := renderUsual(t, file)
			want := filepath.Join(dir, "want.json")
			if *update {
				if err := os.WriteFile(want, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			golden, err := os.ReadFile(want)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(golden), string(got)); diff != "" {
				t.Errorf("differs from %s, run with -update if that is intended:\n%s", want, diff)
			}
			if again := renderUsual(t, file); !bytes.Equal(got, again) {
				t.Error("a second run returned other bytes")
			}
			t.Run("envoy", func(t *testing.T) {
				if envoy == "" {
					t.Skip("no Envoy found: run `make envoy` or set ENVOY")
				}
				validate(t, envoy, want)
			})
		})
	}
}

// TestOverride checks that user settings are merged over the rendered bootstrap, as with
// ISTIO_BOOTSTRAP_OVERRIDE. docs/compatibility.md refers to the files as examples.
func TestOverride(t *testing.T) {
	t.Parallel()
	envoy := findEnvoy()
	if envoy == "" {
		t.Skip("no Envoy found: run `make envoy` or set ENVOY")
	}
	files, err := filepath.Glob("testdata/override*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("overrides: %v, %v", files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			override, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			validate(t, envoy, "testdata/kubernetes/want.json", "--config-yaml", string(override))
		})
	}
}

// readInput returns the input of a golden case.
func readInput(t *testing.T, file string) Input {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var in goldenInput
	if err := dec.Decode(&in); err != nil {
		t.Fatal(err)
	}
	pc, err := meshconfig.ApplyProxyConfig(meshconfig.DefaultProxyConfig(), string(in.ProxyConfig))
	if err != nil {
		t.Fatal(err)
	}
	metadata, warnings, err := NodeMetadata(MetadataInput{
		Variables: in.Variables, Labels: in.Labels, Annotations: in.Annotations, Own: in.Own, ProxyConfig: pc, PlatformLabels: in.PlatformLabels,
	})
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	return Input{
		Node: in.ID, Metadata: metadata, ProxyConfig: pc, BindAddress: in.BindAddress, StateOfTheWorld: in.StateOfTheWorld,
		TracingSet: meshconfig.HasField(in.ProxyConfig, "tracing"), HostIP: in.HostIP, SystemRoots: "ca.pem", DualStack: in.DualStack,
		Locality: in.Locality, XDSRootCert: in.XDSRootCert, Metrics: in.Metrics, SDSSocketName: in.SDSSocketName,
	}
}

func renderUsual(t *testing.T, file string) []byte {
	t.Helper()
	rendered, err := Render(readInput(t, file))
	if err != nil {
		t.Fatal(err)
	}
	return rendered
}

// onlyTracer is the field that makes the control plane's HTTP filters trace without their own
// provider. Envoy has deprecated it, but there is no replacement in the bootstrap.
const onlyTracer = "'envoy.config.bootstrap.v3.Bootstrap.tracing'"

// notValidated is Envoy's remark about fips-140-3: its module is not a validated one.
const notValidated = "FIPS conformance policy applied on a non-FIPS build"

var complaint = regexp.MustCompile(`(?i)deprecated|\[(warning|error|critical)\]`)

// validate lets the real Envoy validate a bootstrap. A warning is a failure.
func validate(t *testing.T, envoy, file string, args ...string) {
	t.Helper()
	file, err := filepath.Abs(file)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(envoy, "--mode", "validate", "-c", file, "-l", "info", "--base-id-path", filepath.Join(t.TempDir(), "id"), "--use-dynamic-base-id")
	cmd.Args = append(cmd.Args, args...)
	cmd.Dir = t.TempDir()
	writeCertificate(t, cmd.Dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("envoy refuses %s: %v\n%s", file, err, out)
	}
	for line := range bytes.Lines(out) {
		if complaint.Match(line) && !bytes.Contains(line, []byte(onlyTracer)) && !bytes.Contains(line, []byte(notValidated)) {
			t.Errorf("envoy complains about %s: %s", file, line)
		}
	}
}

// refused returns Envoy's reason for rejecting a bootstrap.
func refused(t *testing.T, envoy, doc string) error {
	t.Helper()
	file := filepath.Join(t.TempDir(), "x.json")
	if err := os.WriteFile(file, []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	return exec.Command(envoy, "--mode", "validate", "-c", file, "-l", "off", "--use-dynamic-base-id").Run()
}

// writeCertificate writes the files to which the golden cases refer.
func writeCertificate(t *testing.T, dir string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	chain := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})
	for name, data := range map[string][]byte{
		"ca.pem": chain, "cert.pem": chain, "key.pem": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func findEnvoy() string {
	candidates := []string{os.Getenv("ENVOY"), "../bin/envoy", "envoy"}
	for _, candidate := range candidates {
		if candidate == "" {
			continue
		}
		if path, err := exec.LookPath(candidate); err == nil {
			if abs, err := filepath.Abs(path); err == nil {
				return abs
			}
		}
	}
	return ""
}
