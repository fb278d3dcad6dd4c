// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/authn"
	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/join"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/internal/localuser"
)

// joining makes join tokens. Its fields do not change.
type joining struct {
	tokens      *join.Tokens
	reason      string // why there are none; empty if there are
	cluster     string
	certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error) // of the control plane
}

// newJoining returns the maker of join tokens, which are stored where the objects are, if replicas
// share that, or else beside the authority.
func (s *Server) newJoining(cfg Config, own *tls.Config) *joining {
	j := &joining{cluster: cfg.Cluster.ID, certificate: own.GetCertificate}
	store := config.DepositoryOf(s.objects.store)
	switch {
	case !cfg.CA.Enabled:
		j.reason = "this control plane signs no certificates: ENABLE_CA_SERVER is false"
		return j
	case s.kube != nil:
		j.reason = "machines join a cluster with tokens of its API server: use istioctl x workload entry configure"
		return j
	case store == nil:
		store = join.NewDir(filepath.Join(filepath.Dir(cfg.stateDir()), "join"))
	}
	j.tokens = join.NewTokens(store, func() ([]byte, error) { return s.identity.authority.DerivedKey("outrigger join tokens") })
	return j
}

// accepting returns an authenticator that also accepts join tokens.
func (s *Server) accepting(auth authn.Authenticator) authn.Authenticator {
	if s.joining.tokens == nil {
		return auth
	}
	redeem := func(ctx context.Context, token string) (certs.ID, error) {
		id, err := s.joining.tokens.Redeem(ctx, token)
		if err == nil {
			err = s.deniedIdentity(id)
		}
		return id, err
	}
	method := &authn.JoinToken{Is: join.IsSecret, Redeem: redeem, Busy: join.ErrBusy}
	return method.Or(auth)
}

// groupOf returns the WorkloadGroup in which a machine registers: the named one, or the only one of
// its account. It returns an empty name if there is none.
func (s *Server) groupOf(request join.Request) (group, account string, err error) {
	account = request.ServiceAccount
	var found []string
	for _, c := range s.objects.list(model.WorkloadGroup) {
		if c.Namespace != request.Namespace {
			continue
		}
		spec, ok := c.Spec.(*networkingv1alpha3.WorkloadGroup)
		if !ok {
			continue
		}
		of := spec.GetTemplate().GetServiceAccount()
		switch {
		case c.Name == request.Group && account != "" && of != account:
			return "", "", fmt.Errorf("WorkloadGroup %s/%s is of service account %q, not %q: leave out --service-account, or correct the group", c.Namespace, c.Name, of, account)
		case c.Name == request.Group:
			return c.Name, of, nil
		case of == account && account != "":
			found = append(found, c.Name)
		}
	}
	switch {
	case request.Group != "":
		return "", "", fmt.Errorf("there is no WorkloadGroup %s/%s: create it, or leave out --group", request.Namespace, request.Group)
	case len(found) > 1:
		return "", "", fmt.Errorf("service account %s/%s has the WorkloadGroups %s: name one of them with --group", request.Namespace, account, strings.Join(found, ", "))
	case len(found) == 1:
		return found[0], account, nil
	}
	return "", account, nil
}

// addressOf returns the address at which the machine reaches this control plane. Its certificate
// must be for that host.
func (s *Server) addressOf(request join.Request) (string, error) {
	address := request.Address
	const cure = "name it with --address host:port, or set discoveryAddress in defaultConfig of the mesh config"
	if address == "" {
		address = s.settings.Current().Mesh.GetDefaultConfig().GetDiscoveryAddress()
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil || join.CheckAddress(address) != nil {
		return "", fmt.Errorf("the address of the control plane is %q: %s", address, cure)
	}
	pair, err := s.joining.certificate(&tls.ClientHelloInfo{ServerName: host})
	if err != nil {
		return "", err
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return "", err
	}
	if err := leaf.VerifyHostname(host); err != nil {
		return "", fmt.Errorf("the certificate of the control plane is not for %s: add it to ISTIOD_CUSTOM_HOST, or use one of %v", host, append(slices.Clone(leaf.DNSNames), addresses(leaf)...))
	}
	return address, nil
}

func addresses(c *x509.Certificate) (out []string) {
	for _, ip := range c.IPAddresses {
		out = append(out, ip.String())
	}
	return out
}

// createToken answers a request for a join token.
func (s *Server) createToken(w http.ResponseWriter, r *http.Request) {
	var request join.Request
	err := json.NewDecoder(io.LimitReader(r.Body, join.MaxToken)).Decode(&request)
	if err == nil {
		var answer join.Answer
		if answer, err = s.newToken(r, request); err == nil {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(answer) // a disconnected client needs no answer
			return
		}
	}
	http.Error(w, err.Error(), http.StatusUnprocessableEntity)
}

func (s *Server) newToken(r *http.Request, request join.Request) (answer join.Answer, err error) {
	if s.joining.reason != "" {
		return answer, errors.New(s.joining.reason)
	}
	if !s.objects.ready() {
		return answer, errors.New("the control plane is not ready: " + s.objects.loading())
	}
	t := join.Token{Cluster: s.joining.cluster}
	ttl := time.Duration(request.Seconds) * time.Second
	if request.Seconds == 0 {
		ttl = join.DefaultTTL
	}
	if request.Seconds < 0 || request.Seconds > int64(join.MaxTTL/time.Second) {
		ttl = -1
	}
	if err := join.CheckTTL(ttl); err != nil {
		return answer, err
	}
	if t.Group, request.ServiceAccount, err = s.groupOf(request); err != nil {
		return answer, err
	}
	t.ID = certs.ID{TrustDomain: s.identity.authority.TrustDomain(), Namespace: request.Namespace, ServiceAccount: request.ServiceAccount}
	if err := t.ID.Validate(); err != nil {
		return answer, fmt.Errorf("%w: name the machine with --namespace, and --service-account or --group", err)
	}
	if err := s.deniedIdentity(t.ID); err != nil {
		return answer, err
	}
	if t.Address, err = s.addressOf(request); err != nil {
		return answer, err
	}
	if t.Roots, err = certs.ParseChain(s.identity.authority.RootPEM()); err != nil {
		return answer, err
	}
	t.Issued = time.Now()
	if t.Secret, t.Expires, err = s.joining.tokens.Create(r.Context(), t.ID, ttl); err != nil {
		return answer, err
	}
	if answer.Token, err = t.Encode(); err != nil {
		return answer, err
	}
	s.log.Info("join token created", "component", "control", "identity", t.ID.String(), "address", t.Address, "expires", t.Expires.UTC().Format(time.RFC3339))
	answer.Identity, answer.Group, answer.Address, answer.Expires = t.ID.String(), t.Group, t.Address, t.Expires.UTC()
	return answer, nil
}

// newAdmin creates the server of the admin socket.
func (s *Server) newAdmin(cfg Config) {
	if cfg.Listen.Admin == "" || s.joining == nil {
		return
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+join.Path, s.createToken)
	s.ports.admin = s.ports.limits.httpServer(mux)
}

// listenAdmin binds the admin socket. A socket that nobody serves is replaced.
func listenAdmin(path string) (net.Listener, error) {
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == os.ModeSocket {
		if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
			_ = conn.Close() // nothing was sent
			return nil, fmt.Errorf("environment variable OUTRIGGER_ADMIN_SOCKET: another process serves %s", path)
		} else if !errors.Is(err, syscall.ECONNREFUSED) {
			return nil, fmt.Errorf("environment variable OUTRIGGER_ADMIN_SOCKET: %w", err)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("environment variable OUTRIGGER_ADMIN_SOCKET: %w", err)
		}
	}
	l, err := net.Listen("unix", path)
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("environment variable OUTRIGGER_ADMIN_SOCKET: %w", err)
	}
	return adminListener{l}, nil
}

// adminListener closes the connections of other users than root and that of this process.
type adminListener struct{ net.Listener }

// Accept implements net.Listener.
func (l adminListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if _, uid, ok := localuser.Peer(conn); ok && (uid == 0 || uid == os.Geteuid()) {
			return conn, nil
		}
		_ = conn.Close() // it was refused
	}
}
