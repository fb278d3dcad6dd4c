// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	cav1 "istio.io/api/security/v1alpha1"

	"github.com/outrigger-mesh/outrigger/certs"
)

// planeName is the name in the certificate of every control plane.
const planeName = "istiod.istio-system.svc"

// plane is a running control plane that reads its configuration from files.
type plane struct {
	*process
	dir, ip string
	issuer  *issuer
	roots   *x509.CertPool
}

// newPlane starts a control plane with the given configuration files and additional environment
// variables, and waits until it is ready.
func (s *suite) newPlane(ctx context.Context, config map[string]string, env ...string) (*plane, error) {
	return s.newPlaneAt(ctx, s.address(), config, env...)
}

// newPlaneAt is like newPlane, with an address.
func (s *suite) newPlaneAt(ctx context.Context, ip string, config map[string]string, env ...string) (*plane, error) {
	dir, err := s.folder("control")
	if err != nil {
		return nil, err
	}
	p := &plane{dir: dir, ip: ip}
	for name, text := range config {
		if err := p.write(name, text); err != nil {
			return nil, err
		}
	}
	if p.issuer, err = newIssuer(); err != nil {
		return nil, err
	}
	rule, err := p.issuer.rule()
	if err != nil {
		return nil, err
	}
	settings := filepath.Join(dir, "settings.yaml")
	text := fmt.Sprintf("configSources: [{address: %q}]\ntrustDomain: cluster.local\nrootNamespace: istio-system\n", "fs://"+filepath.Join(dir, "config"))
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "config"), 0o755), write(settings, text, 0o644)); err != nil {
		return nil, err
	}
	p.process, err = start(spec{
		path: filepath.Join(s.bin, "outrigger-control"), dir: dir,
		args: []string{
			"discovery", "--meshConfig", settings, "--registries", "", "--grpcAddr", p.ip + ":15010",
			"--secureGRPCAddr", p.ip + ":15012", "--httpAddr", p.ip + ":8080", "--monitoringAddr", p.ip + ":15014",
		},
		env: append([]string{"JWT_RULE=" + rule, "OUTRIGGER_STATE_DIR=" + filepath.Join(dir, "state"), "POD_NAMESPACE=istio-system"}, env...),
	})
	if err != nil {
		return nil, err
	}
	if err := p.begin(ctx); err != nil {
		p.Stop()
		return nil, fmt.Errorf("the control plane does not become ready: %w: %s", err, p.LastWords())
	}
	return p, nil
}

// begin waits until the control plane is ready and reads its root certificate.
func (p *plane) begin(ctx context.Context) error {
	err := eventually(ctx, func() error {
		select {
		case <-p.Ended:
			return fmt.Errorf("it has ended: %w", p.Err)
		default:
		}
		return p.ready(ctx)
	})
	if err != nil {
		return err
	}
	pem, err := os.ReadFile(filepath.Join(p.dir, "state", "root-cert.pem"))
	if err != nil {
		return err
	}
	p.roots = x509.NewCertPool()
	if !p.roots.AppendCertsFromPEM(pem) {
		return errors.New("its root certificate cannot be read")
	}
	return nil
}

// plane returns the control plane shared by attacks that leave no traces.
func (s *suite) plane(ctx context.Context) (*plane, error) {
	if s.shared == nil {
		p, err := s.newPlane(ctx, map[string]string{"shop.yaml": shop()})
		if err != nil {
			return nil, err
		}
		s.shared = p
	}
	return s.shared, nil
}

// shared wraps an attack that leaves no traces on the shared control plane. The attack returns its
// observation.
func shared(attack func(context.Context, *plane) (string, error)) func(context.Context, *suite) (outcome, error) {
	return func(ctx context.Context, s *suite) (outcome, error) {
		p, err := s.plane(ctx)
		if err != nil {
			return outcome{}, err
		}
		seen, err := attack(ctx, p)
		return outcome{seen: seen}, err
	}
}

// write atomically replaces a file of the configuration.
func (p *plane) write(name, text string) error {
	path := filepath.Join(p.dir, "config", name)
	if err := write(path+".new", text, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func (p *plane) ready(ctx context.Context) error {
	code, body, err := get(ctx, "http://"+p.ip+":8080/ready")
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("/ready answers %d: %s", code, body)
	}
	return err
}

// get requests a URL on a new connection and returns at most 1 MB of the response.
func get(ctx context.Context, url string) (int, string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	return send(&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, req)
}

// send sends a request without following redirects.
func send(client *http.Client, req *http.Request) (int, string, error) {
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return resp.StatusCode, string(body), errors.Join(err, resp.Body.Close())
}

// connect returns a connection to the secure port, with a client certificate if it is not nil. It
// dials on the first call.
func (p *plane) connect(client *tls.Certificate) (*grpc.ClientConn, error) {
	cfg := &tls.Config{RootCAs: p.roots, ServerName: planeName, MinVersion: tls.VersionTLS12}
	if client != nil {
		// Present the certificate even if the server does not accept its issuer.
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return client, nil }
	}
	return grpc.NewClient("passthrough:///"+p.ip+":15012", grpc.WithTransportCredentials(credentials.NewTLS(cfg)),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
}

// plaintext returns a connection to the port without authentication.
func (p *plane) plaintext() (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+p.ip+":15010", grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// withToken adds a token to the calls in a context.
func withToken(ctx context.Context, token string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
}

// request creates a key and a certificate request for an identity.
func request(id certs.ID) (*tls.Certificate, string, error) {
	key, err := certs.NewKey(certs.ECDSAP256)
	if err != nil {
		return nil, "", err
	}
	csr, err := certs.NewCSR(key, id)
	return &tls.Certificate{PrivateKey: key}, string(csr), err
}

// identity returns the SPIFFE identity of namespace/account.
func identity(namespace, account string) certs.ID {
	return certs.ID{TrustDomain: "cluster.local", Namespace: namespace, ServiceAccount: account}
}

// sign requests a certificate for an identity.
func sign(ctx context.Context, conn grpc.ClientConnInterface, id certs.ID) (*tls.Certificate, error) {
	pair, csr, err := request(id)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answer, err := cav1.NewIstioCertificateServiceClient(conn).CreateCertificate(ctx, &cav1.IstioCertificateRequest{Csr: csr, ValidityDuration: 3600})
	if err != nil {
		return nil, err
	}
	for _, element := range answer.CertChain {
		chain, err := certs.ParseChain([]byte(element))
		if err != nil {
			return nil, err
		}
		for _, c := range chain {
			pair.Certificate = append(pair.Certificate, c.Raw)
		}
	}
	if len(pair.Certificate) == 0 {
		return nil, errors.New("the answer holds no certificate")
	}
	pair.Leaf, err = x509.ParseCertificate(pair.Certificate[0])
	return pair, err
}

// member returns a certificate of a workload, issued for a valid token.
func (p *plane) member(ctx context.Context, namespace, account string) (*tls.Certificate, error) {
	token, err := p.issuer.good(namespace, account)
	if err != nil {
		return nil, err
	}
	conn, err := p.connect(nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // only the certificate matters
	pair, err := sign(withToken(ctx, token), conn, identity(namespace, account))
	if err != nil {
		return nil, fmt.Errorf("%s/%s gets no certificate: %w", namespace, account, err)
	}
	return pair, nil
}

// refused returns an error unless the call failed because of the caller's identity.
func refused(err error) error {
	switch status.Code(err) {
	case codes.Unauthenticated, codes.PermissionDenied, codes.InvalidArgument, codes.ResourceExhausted:
		return nil
	case codes.OK:
		return errors.New("it was accepted")
	case codes.Unavailable, codes.Internal:
		return nil // the connection was closed, during the handshake or later
	}
	return fmt.Errorf("it ended with another error than a refusal: %w", err)
}

// during calls serve repeatedly until work returns. It returns an error unless serve succeeded at
// least once during or after the work.
func during(ctx context.Context, work, serve func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	working, finished := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		defer finished()
		done <- work(ctx)
	}()
	served, last := 0, error(nil)
	for served == 0 || working.Err() == nil {
		if err := serve(ctx); err != nil {
			last = err
			if working.Err() != nil {
				return errors.Join(<-done, fmt.Errorf("others are not served: %w", last))
			}
		} else {
			served++
		}
		select {
		case <-working.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
	return <-done
}
