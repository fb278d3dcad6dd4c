// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/config/field"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// The errors of writes to a [Store], besides those of the network. Test with errors.Is;
// the text of the error names the object and the cure.
var (
	// ErrNotFound means that the object does not exist.
	ErrNotFound = errors.New("it does not exist")
	// ErrExists means that an object of that key exists already.
	ErrExists = errors.New("it already exists")
	// ErrConflict means that the object changed since it was read.
	ErrConflict = errors.New("it was changed in the meantime: read it again and repeat the change")
	// ErrReadOnly means that the store accepts no writes.
	ErrReadOnly = errors.New("the store is read only")
	// ErrNoKind means that the store does not serve the kind.
	ErrNoKind = errors.New("the store does not support the kind")
	// ErrMalformed means that the source has an invalid document in the object's
	// place, which a write would destroy.
	ErrMalformed = errors.New("the stored document is invalid and would be lost: correct or remove it first")
	// ErrInvalid means that the object breaks a rule; see [InvalidError].
	ErrInvalid = errors.New("it is invalid")
	// ErrFull means that a [Depository] accepts no more values.
	ErrFull = errors.New("too many are stored: wait until some expire")
)

// StatusCode returns the HTTP status of an error of a [Store] as in Kubernetes: 404, 409
// for a conflict, 405, 422, otherwise 500.
func StatusCode(err error) int {
	switch {
	case err == nil:
		return http.StatusOK
	case errors.Is(err, ErrNotFound), errors.Is(err, ErrNoKind):
		return http.StatusNotFound
	case errors.Is(err, ErrExists), errors.Is(err, ErrConflict), errors.Is(err, ErrMalformed):
		return http.StatusConflict
	case errors.Is(err, ErrReadOnly):
		return http.StatusMethodNotAllowed
	case errors.Is(err, ErrInvalid):
		return http.StatusUnprocessableEntity
	}
	return http.StatusInternalServerError
}

// InvalidError lists all faults of one object.
type InvalidError struct {
	Key    model.Key
	Faults []field.Error
}

func (e *InvalidError) Error() string {
	texts := make([]string, len(e.Faults))
	for i, f := range e.Faults {
		texts[i] = f.Error()
	}
	return fmt.Sprintf("%s is not valid: %s", e.Key, strings.Join(texts, "; "))
}

// Is makes the error an [ErrInvalid].
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// keyError wraps an error with the operation and the object.
func keyError(verb string, key model.Key, err error) error {
	return fmt.Errorf("%s %s: %w", verb, key, err)
}
