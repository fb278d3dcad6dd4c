// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package machine

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	securityv1alpha1 "istio.io/api/security/v1alpha1"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/ca"
	"github.com/outrigger-mesh/outrigger/controlplane/join"
	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

// TestMain runs the tests in a network of their own: the ports of an agent are fixed.
func TestMain(m *testing.M) { os.Exit(ownnet.Tests(m).Run()) }

var orders = certs.ID{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "orders"}

// authority returns an authority, and a token whose address is that of a TLS server of it.
func authority(t *testing.T) (*ca.Authority, *join.Token) {
	t.Helper()
	a, err := ca.Open(t.Context(), ca.Config{Dir: filepath.Join(t.TempDir(), "ca"), TrustDomain: "cluster.local"})
	if err != nil {
		t.Fatal(err)
	}
	roots, err := certs.ParseChain(a.RootPEM())
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := a.ServerCertificate(nil, []net.IP{net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = conn.Read(make([]byte, 1))
				_ = conn.Close()
			}()
		}
	}()
	now := time.Now()
	return a, &join.Token{
		Address: l.Addr().String(), Secret: "outrigger-join-" + strings.Repeat("a", 43), ID: orders, Group: "orders", Cluster: "Kubernetes",
		Issued: now, Expires: now.Add(time.Hour), Roots: roots,
	}
}

// testHost returns a machine whose files are in a directory, with the package installed and with a
// systemd that answers with the given function.
func testHost(t *testing.T, systemctl func(args []string) (string, error)) (*host, *bytes.Buffer) {
	t.Helper()
	var out bytes.Buffer
	root := t.TempDir()
	for _, dir := range []string{"var/lib/istio/envoy", "etc/istio/config", "etc/certs", stateDir + "/lastgood", filepath.Dir(unitFile)} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, unitFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h := &host{
		root: root, out: &out, running: root, uid: os.Geteuid(),
		account: func(string) (*user.User, error) {
			return &user.User{Uid: strconv.Itoa(os.Geteuid()), Gid: strconv.Itoa(os.Getegid())}, nil
		},
		run: func(_ context.Context, name string, args ...string) (string, error) {
			if name != "systemctl" {
				t.Errorf("%s was run", name)
			}
			return systemctl(args)
		},
	}
	return h, &out
}

// written writes the files of a machine that has joined.
func written(t *testing.T, h *host, a *ca.Authority, token *join.Token) {
	t.Helper()
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := certs.NewCSR(key, token.ID)
	if err != nil {
		t.Fatal(err)
	}
	issued, err := a.Sign(t.Context(), csr, token.ID, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	chain, err := certs.ParseChain(bytes.Join(issued.Chain, nil))
	if err != nil {
		t.Fatal(err)
	}
	if err := verify(token, chain, key); err != nil {
		t.Fatal(err)
	}
	keyPEM, err := certs.MarshalKey(key)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.write(token, chain, keyPEM); err != nil {
		t.Fatal(err)
	}
	other := *token
	other.ID.ServiceAccount = "web"
	if err := verify(&other, chain, key); err == nil {
		t.Error("the certificate of another identity is accepted")
	}
	otherKey, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	if err := verify(token, chain, otherKey); err == nil {
		t.Error("the certificate of another key is accepted")
	}
	_, foreign := authority(t)
	if err := verify(foreign, chain, key); err == nil {
		t.Error("the certificate of another authority is accepted")
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	h, _ := testHost(t, func([]string) (string, error) { return "", nil })
	a, token := authority(t)
	// The user of the agent may put links in its directories. They are replaced, not followed.
	target := filepath.Join(t.TempDir(), "target")
	if err := errors.Join(os.WriteFile(target, []byte("kept"), 0o600), os.Symlink(target, h.path(keyFile))); err != nil {
		t.Fatal(err)
	}
	written(t, h, a, token)
	if content, err := os.ReadFile(target); err != nil || string(content) != "kept" {
		t.Errorf("a link was followed: %q, %v", content, err)
	}
	if _, err := tls.LoadX509KeyPair(h.path(chainFile), h.path(keyFile)); err != nil {
		t.Error(err)
	}
	for name, want := range map[string]string{
		clusterFile: marker + "POD_NAMESPACE='shop'\nSERVICE_ACCOUNT='orders'\nTRUST_DOMAIN='cluster.local'\nCANONICAL_SERVICE='orders'\nISTIO_META_WORKLOAD_NAME='orders'\n" +
			"ISTIO_META_CLUSTER_ID='Kubernetes'\nISTIO_META_AUTO_REGISTER_GROUP='orders'\nISTIO_META_DNS_CAPTURE='true'\nISTIO_META_DNS_AUTO_ALLOCATE='true'\n",
		meshFile:  marker + "trustDomain: \"cluster.local\"\ndefaultConfig:\n  discoveryAddress: \"" + token.Address + "\"\n",
		rootsFile: string(a.RootPEM()),
	} {
		if got, err := os.ReadFile(h.path(name)); err != nil || string(got) != want {
			t.Errorf("%s is\n%s, %v; want\n%s", name, got, err, want)
		}
	}
	for name, want := range map[string]os.FileMode{keyFile: 0o600, chainFile: 0o600, clusterFile: 0o644, meshFile: 0o644} {
		if info, err := os.Lstat(h.path(name)); err != nil || info.Mode() != want {
			t.Errorf("%s is %v, %v; want mode %v", name, info.Mode(), err, want)
		}
	}
	if path, ours := h.joined(); path != h.path(clusterFile) || !ours {
		t.Errorf("joined() = %s, %t", path, ours)
	}
	if os.Geteuid() == 0 {
		if err := h.leave(t.Context()); err != nil {
			t.Fatal(err)
		}
	} else if err := h.remove(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{clusterFile, meshFile, rootsFile, chainFile, keyFile, stateDir + "/lastgood"} {
		if _, err := os.Lstat(h.path(name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", name, err)
		}
	}
	if path, _ := h.joined(); path != "" {
		t.Errorf("still joined: %s", path)
	}
}

// TestCheck makes everything wrong at once. All problems are listed, and the token is not used.
func TestCheck(t *testing.T) {
	h, out := testHost(t, nil)
	h.uid = 0
	_, token := authority(t)
	if err := h.check(t.Context(), token); err != nil {
		if !strings.Contains(out.String(), "kernel         PROBLEM") || strings.Count(out.String(), "PROBLEM") != 1 {
			t.Fatalf("%v\n%s", err, out)
		}
		t.Log("nftables cannot be used here:", out)
	}
	out.Reset()

	h.uid = 1000
	h.account = func(name string) (*user.User, error) { return nil, user.UnknownUserError(name) }
	if err := os.WriteFile(h.path(clusterFile), []byte("SERVICE_ACCOUNT='x'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:15001")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	_, other := authority(t)
	token.Roots = other.Roots
	token.Issued = time.Now().Add(10 * time.Minute)
	if err := h.join(t.Context(), token, false, time.Minute); err == nil || !strings.Contains(err.Error(), "problems above; the token stays valid") {
		t.Errorf("got error %v", err)
	}
	for _, want := range []string{
		"use sudo", "install the package outrigger-agent", "outrigger join did not write it", "set the clock", "in use: 15001:", "is not the control plane that made the token",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the problems lack %q:\n%s", want, out)
		}
	}
	if err := h.leave(t.Context()); err == nil {
		t.Error("a user left")
	}
	h.uid = 0
	if err := h.leave(t.Context()); err == nil || !strings.Contains(err.Error(), "did not write") {
		t.Errorf("leaving what another program joined: got error %v", err)
	}
	token.Issued, token.Expires = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
	if _, err := checkClock(t.Context(), token); err == nil || !strings.Contains(err.Error(), "the token expired") {
		t.Errorf("an expired token: got error %v", err)
	}
	token.Address = "127.0.0.1:1"
	if _, err := checkReach(t.Context(), token); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("nobody there: got error %v", err)
	}
	token.Address = "nowhere.invalid:15012"
	if _, err := checkReach(t.Context(), token); err == nil || !strings.Contains(err.Error(), "/etc/hosts") {
		t.Errorf("no name: got error %v", err)
	}
}

func TestStart(t *testing.T) {
	t.Parallel()
	states := []string{"ActiveState=activating\nStatusText=", "ActiveState=activating\nStatusText=waiting for a certificate", "ActiveState=activating\nStatusText=waiting for a certificate", "ActiveState=active\nStatusText=ready"}
	var calls []string
	h, out := testHost(t, func(args []string) (string, error) {
		if args[0] != "show" {
			calls = append(calls, strings.Join(args, " "))
			return "", nil
		}
		next := states[0]
		if len(states) > 1 {
			states = states[1:]
		}
		return next, nil
	})
	if err := h.start(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(calls, "; "); got != "--quiet enable outrigger-agent.service; start --no-block outrigger-agent.service" {
		t.Errorf("systemctl: %s", got)
	}
	if want := "started outrigger-agent.service\nagent: waiting for a certificate\nagent: ready\nthis machine is part of the mesh\n"; out.String() != want {
		t.Errorf("got\n%s, want\n%s", out, want)
	}
	states = []string{"ActiveState=activating\nStatusText=no\x1b[2Jcertificate"}
	if err := h.start(t.Context(), time.Millisecond); err == nil || !strings.Contains(err.Error(), "it keeps trying") || strings.Contains(out.String(), "\x1b") {
		t.Errorf("got error %v, output %q", err, out)
	}
}

// TestCreateWithout checks what join create says without a control plane.
func TestCreateWithout(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "admin")
	if _, err := create(t.Context(), socket, join.Request{}); err == nil || !strings.Contains(err.Error(), "no control plane serves") {
		t.Errorf("got error %v", err)
	}
}

// TestReadToken reads a token of a file with more than a token.
func TestReadToken(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	root, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	token := join.Token{Address: "a:1", Secret: "outrigger-join-" + strings.Repeat("a", 43), ID: orders, Roots: []*x509.Certificate{root}}
	word, err := token.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, argument := range []string{"-", word} {
		if got, err := readToken(argument, strings.NewReader(word+"\n")); err != nil || got.ID != orders {
			t.Errorf("readToken(%.20s) = %v, %v", argument, got, err)
		}
	}
	if _, err := readToken("-", strings.NewReader(strings.Repeat("a", 10<<20))); err == nil {
		t.Error("10 MiB are a token")
	}
}

// briefly is a control plane that is unavailable for a number of requests, and signs the others.
type briefly struct {
	securityv1alpha1.UnimplementedIstioCertificateServiceServer
	authority *ca.Authority
	id        certs.ID
	left      atomic.Int64
}

func (b *briefly) CreateCertificate(ctx context.Context, r *securityv1alpha1.IstioCertificateRequest) (*securityv1alpha1.IstioCertificateResponse, error) {
	if b.left.Add(-1) >= 0 {
		return nil, status.Error(codes.Unavailable, "the control plane ends")
	}
	issued, err := b.authority.Sign(ctx, []byte(r.GetCsr()), b.id, time.Hour)
	if err != nil {
		return nil, err
	}
	answer := &securityv1alpha1.IstioCertificateResponse{}
	for _, text := range append(issued.Chain, b.authority.RootPEM()) {
		answer.CertChain = append(answer.CertChain, string(text))
	}
	return answer, nil
}

// TestEnrol enrols while control planes end: a machine tries again, a few times.
func TestEnrol(t *testing.T) {
	t.Parallel()
	a, token := authority(t)
	cfg, err := a.ServerCertificate(nil, []net.IP{net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	control := &briefly{authority: a, id: token.ID}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(cfg)))
	securityv1alpha1.RegisterIstioCertificateServiceServer(server, control)
	go func() { _ = server.Serve(l) }() // until Stop
	t.Cleanup(server.Stop)
	token.Address = l.Addr().String()
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	for failures, want := range map[int]string{0: "", enrolAttempts - 1: "", enrolAttempts: "the control plane ends"} {
		h, out := testHost(t, nil)
		control.left.Store(int64(failures))
		chain, err := h.enrol(t.Context(), token, key)
		if want == "" && (err != nil || len(chain) == 0) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("after %d failures: got %d certificates and error %v, want an error with %q", failures, len(chain), err, want)
		}
		if got := strings.Count(out.String(), "trying again"); got != min(failures, enrolAttempts-1) {
			t.Errorf("after %d failures the output is\n%s", failures, out)
		}
	}
}
