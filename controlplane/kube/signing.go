// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"crypto/rsa"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/controlplane/ca"
)

const (
	csrPrefix      = "csr-workload-"
	signingTimeout = 60 * time.Second
	cleanTimeout   = 10 * time.Second
	// minCSRLife is the minimum lifetime that the API accepts.
	minCSRLife = 10 * time.Minute
	// conflicts is the maximum number of attempts to approve a request.
	conflicts = 5
)

// RegistrationConfig is the configuration of a RegistrationAuthority.
type RegistrationConfig struct {
	Client *Client
	// Signer is the full name of the signer for requests that name none; requests may also name it.
	// Empty means that there is none.
	Signer string
	// Domain is the prefix of the signer names in requests: for "x" the signer is Domain/x. Empty
	// means that requests cannot name another signer.
	Domain  string
	Approve bool          // approve the requests; otherwise another approver is needed
	Timeout time.Duration // for one certificate; zero means 60 s
	Logger  *slog.Logger  // nil means slog.Default()
}

// RegistrationAuthority obtains certificates through the API certificates.k8s.io. It creates a
// CertificateSigningRequest, approves it, waits for the certificate, checks that it matches the
// request, and always deletes the request. The certificate service checks beforehand that the
// caller may use the name in its request. If the process is killed in between, Kubernetes removes
// the request after a day at the latest.
//
// It requires permission to create, get, watch and delete certificatesigningrequests, to update
// certificatesigningrequests/approval, and to approve for the signers.
type RegistrationAuthority struct {
	cfg RegistrationConfig
	log *slog.Logger
}

// NewRegistrationAuthority returns a RegistrationAuthority. It returns an error if the
// configuration is invalid.
func NewRegistrationAuthority(cfg RegistrationConfig) (*RegistrationAuthority, error) {
	if cfg.Client == nil {
		return nil, errors.New("registration authority: there is no cluster to query")
	}
	if cfg.Signer == "" && cfg.Domain == "" {
		return nil, errors.New("registration authority: neither a signer nor a domain of signers is named")
	}
	for _, name := range []string{cfg.Signer, cfg.Domain + "/x"} {
		if domain, path, ok := strings.Cut(name, "/"); name != "" && name != "/x" && (!ok || domain == "" || path == "") {
			return nil, fmt.Errorf("registration authority: signer %q is not of the form <domain>/<name>", name)
		}
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = signingTimeout
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &RegistrationAuthority{cfg: cfg, log: cfg.Logger}, nil
}

// Sign implements ca.RemoteSigner.
func (r *RegistrationAuthority) Sign(ctx context.Context, csrPEM []byte, signerName string, ttl time.Duration) ([][]byte, error) {
	signer, err := r.signer(signerName)
	if err != nil {
		return nil, err
	}
	csr, err := readCSR(csrPEM)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	chain, err := r.sign(ctx, csr, order{csrPEM, signer, ttl})
	r.cfg.Client.metrics.asked(err)
	if err != nil {
		return nil, fmt.Errorf("signing certificate for %s by %s: %w", csr.URIs[0], signer, err)
	}
	out := make([][]byte, len(chain))
	for i, c := range chain {
		out[i] = certs.EncodeChain(c)
	}
	return out, nil
}

// order is the content of a CertificateSigningRequest.
type order struct {
	csr    []byte
	signer string
	ttl    time.Duration
}

func (r *RegistrationAuthority) signer(name string) (string, error) {
	switch {
	case name == "":
		return "", fmt.Errorf("%w: it names no signer", ca.ErrRequest)
	case name == r.cfg.Signer:
		return name, nil
	case r.cfg.Domain == "":
		return "", fmt.Errorf("%w: it names a signer, but no signers are allowed by the configuration", ca.ErrRequest)
	case strings.ContainsAny(name, "/ \t\r\n") || len(name) > 200:
		return "", fmt.Errorf("%w: the name of its signer is not that of a signer below %s", ca.ErrRequest, r.cfg.Domain)
	}
	return r.cfg.Domain + "/" + name, nil
}

// readCSR parses a request that must name one workload.
func readCSR(pem []byte) (*x509.CertificateRequest, error) {
	csr, err := certs.ParseCSR(pem)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ca.ErrRequest, err)
	}
	if len(csr.URIs) != 1 {
		return nil, fmt.Errorf("%w: it has %d URI names; the signer requires exactly one, the identity", ca.ErrRequest, len(csr.URIs))
	}
	if _, err := certs.ParseID(csr.URIs[0].String()); err != nil {
		return nil, fmt.Errorf("%w: %w", ca.ErrRequest, err)
	}
	return csr, nil
}

func (r *RegistrationAuthority) sign(ctx context.Context, csr *x509.CertificateRequest, o order) ([]*x509.Certificate, error) {
	requests := r.cfg.Client.signing.requests
	object := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: csrPrefix},
		Spec:       certificatesv1.CertificateSigningRequestSpec{Request: o.csr, SignerName: o.signer, Usages: usages(csr)},
	}
	if o.ttl > 0 {
		seconds := int32(min(max(o.ttl, minCSRLife)/time.Second, 1<<31-1))
		object.Spec.ExpirationSeconds = &seconds
	}
	object, err := requests.Create(ctx, object, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create CertificateSigningRequest: %w", err)
	}
	defer r.clean(ctx, object.Name)
	if r.cfg.Approve {
		if object, err = r.approve(ctx, object, csr.URIs[0].String()); err != nil {
			return nil, fmt.Errorf("approve CertificateSigningRequest %s: %w", object.Name, err)
		}
	}
	if object, err = r.wait(ctx, object); err != nil {
		return nil, err
	}
	return readIssued(object.Status.Certificate, csr)
}

func usages(csr *x509.CertificateRequest) []certificatesv1.KeyUsage {
	out := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth, certificatesv1.UsageClientAuth}
	if _, ok := csr.PublicKey.(*rsa.PublicKey); ok {
		out = append(out, certificatesv1.UsageKeyEncipherment)
	}
	return out
}

// clean deletes the request, even if the context of the caller is done.
func (r *RegistrationAuthority) clean(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	err := r.cfg.Client.signing.requests.Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		r.log.Warn("a CertificateSigningRequest is left over; Kubernetes removes it within a day", "name", name, "err", err)
	}
}

func (r *RegistrationAuthority) approve(ctx context.Context, object *certificatesv1.CertificateSigningRequest, id string) (*certificatesv1.CertificateSigningRequest, error) {
	for attempt := 1; ; attempt++ {
		object.Status.Conditions = append(object.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue,
			Reason: "Authenticated", Message: "the control plane of the mesh has authenticated " + id,
		})
		next, err := r.cfg.Client.signing.approve(ctx, object)
		if err == nil {
			return next, nil
		}
		if !apierrors.IsConflict(err) || attempt == conflicts {
			return object, err
		}
		next, err = r.cfg.Client.signing.requests.Get(ctx, object.Name, metav1.GetOptions{})
		if err != nil {
			return object, err
		}
		object = next
		if decided(object) { // by another approver of the cluster
			return object, nil
		}
	}
}

// decided reports whether a request was approved or denied. The decision is final.
func decided(object *certificatesv1.CertificateSigningRequest) bool {
	return slices.ContainsFunc(object.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		return c.Type == certificatesv1.CertificateApproved || c.Type == certificatesv1.CertificateDenied
	})
}

// wait returns the request once it has a certificate. It restarts watches that end, and retries
// while the API server is unreachable.
func (r *RegistrationAuthority) wait(ctx context.Context, object *certificatesv1.CertificateSigningRequest) (*certificatesv1.CertificateSigningRequest, error) {
	requests := r.cfg.Client.signing.requests
	name := object.Name
	var trouble error
	for {
		if done, err := settled(object); done || err != nil {
			return object, err
		}
		events, err := requests.Watch(ctx, metav1.ListOptions{
			FieldSelector:   fields.OneTermEqualSelector("metadata.name", name).String(),
			ResourceVersion: object.ResourceVersion,
		})
		if err == nil {
			if object, err = next(ctx, events, object); err != nil {
				return nil, fmt.Errorf("request %s: %w", name, err)
			}
			if done, err := settled(object); done || err != nil {
				return object, err
			}
		}
		trouble = err
		pause(ctx, time.Second) // the watch ended without a result; the API server may be restarting
		switch now, err := requests.Get(ctx, name, metav1.GetOptions{}); {
		case ctx.Err() != nil:
			return nil, errors.Join(fmt.Errorf("request %s received no certificate in time: is its signer running? %w", name, context.Cause(ctx)), trouble)
		case apierrors.IsNotFound(err):
			return nil, fmt.Errorf("request %s: %w", name, errDeleted)
		case err == nil:
			object = now
		}
	}
}

// errDeleted is returned by wait if the request was deleted.
var errDeleted = errors.New("it was deleted")

// next follows a watch until the request is settled or the watch ends.
func next(ctx context.Context, events watch.Interface, object *certificatesv1.CertificateSigningRequest) (*certificatesv1.CertificateSigningRequest, error) {
	defer events.Stop()
	for {
		// Cases: ctx is done; an event, or the end of the watch.
		select {
		case <-ctx.Done():
			return object, nil
		case e, ok := <-events.ResultChan():
			if !ok || e.Type == watch.Error {
				return object, nil
			}
			changed, is := e.Object.(*certificatesv1.CertificateSigningRequest)
			if !is {
				continue
			}
			if e.Type == watch.Deleted {
				return object, errDeleted
			}
			object = changed
			if done, err := settled(object); done || err != nil {
				return object, nil
			}
		}
	}
}

// settled reports whether there is a certificate. It returns an error if there will be none.
func settled(object *certificatesv1.CertificateSigningRequest) (bool, error) {
	for _, c := range object.Status.Conditions {
		if c.Type == certificatesv1.CertificateDenied || c.Type == certificatesv1.CertificateFailed {
			return false, fmt.Errorf("request %s is %s: %s %s", object.Name, strings.ToLower(string(c.Type)), c.Reason, c.Message)
		}
	}
	return len(object.Status.Certificate) > 0, nil
}

// readIssued parses the issued certificates and checks that they match the request, because the
// signer is a third party.
func readIssued(pem []byte, csr *x509.CertificateRequest) ([]*x509.Certificate, error) {
	chain, err := certs.ParseChain(pem)
	if err != nil {
		return nil, fmt.Errorf("reading what the signer issued: %w", err)
	}
	leaf := chain[0]
	if !certs.SamePublicKey(leaf.PublicKey, csr.PublicKey) {
		return nil, errors.New("the signer issued a certificate for another key")
	}
	if len(leaf.URIs) != 1 || leaf.URIs[0].String() != csr.URIs[0].String() {
		return nil, errors.New("the signer issued a certificate for another identity")
	}
	if leaf.IsCA {
		return nil, errors.New("the signer issued the certificate of an authority")
	}
	if !time.Now().Before(leaf.NotAfter) {
		return nil, fmt.Errorf("the signer issued a certificate that expired at %s", leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	return chain, nil
}

var _ ca.RemoteSigner = (*RegistrationAuthority)(nil)
