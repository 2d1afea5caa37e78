package podstorage

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/streaming/pkg/httpstream"
)

// creator checks whether the user who starts a stream has the verb create, whatever the HTTP method
// is: a websocket starts with a GET, and a user who may only read must not run anything (upstream's
// AuthorizePodWebsocketUpgradeCreatePermission).
type creator struct {
	authorizer authorizer.UnconditionalAuthorizer
}

const verbCreate = "create"

func (c creator) check(ctx context.Context) error {
	info, ok := apirequest.RequestInfoFrom(ctx)
	if !ok {
		return apierrors.NewInternalError(errors.New("no request info in context"))
	}
	if info.Verb == verbCreate {
		return nil // it was checked before the request came here
	}
	if c.authorizer == nil {
		return apierrors.NewInternalError(errors.New("no authorizer available"))
	}
	attributes, err := filters.GetAuthorizerAttributes(ctx)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("error building authorizer attributes: %w", err))
	}
	decision, reason, err := c.authorizer.Authorize(ctx, asCreate{attributes})
	if err != nil {
		return err
	}
	if decision != authorizer.DecisionAllow {
		return apierrors.NewForbidden(schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}, info.Name,
			errors.New(reason))
	}
	return nil
}

// upgrades lets plain requests through; one that becomes a stream requires the verb create.
func (c creator) upgrades(next http.Handler, responder rest.Responder) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if httpstream.IsUpgradeRequest(r) {
			if err := c.check(r.Context()); err != nil {
				responder.Error(err)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// asCreate is a request with another verb.
type asCreate struct{ authorizer.Attributes }

func (asCreate) GetVerb() string { return verbCreate }
