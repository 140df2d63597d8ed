package runtime

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"klbr/internal/klbr"
)

// maxBody bounds a body that is read back, in bytes.
const maxBody = 256 << 20

// externalize gives the records as they are stored: a body above
// klbr.MaxInlineBody is written as an artifact, durably, and referred to.
func (rt *Runtime) externalize(ctx context.Context, rs []klbr.Record) ([]klbr.Record, error) {
	out := rs
	for i, r := range rs {
		if len(r.Body) <= klbr.MaxInlineBody {
			continue
		}
		sum, err := rt.opt.Artifacts.PutBytes(context.WithoutCancel(ctx), r.Body)
		if err != nil {
			return nil, fmt.Errorf("keep the body of %s: %w", r.Kind, err)
		}
		if &out[0] == &rs[0] {
			out = slices.Clone(rs)
		}
		head := strings.ToValidUTF8(string(r.Body[:klbr.HeadBytes]), "")
		out[i].Ref = &klbr.BodyRef{SHA256: sum, Size: int64(len(r.Body)), Head: head}
		out[i].Body = nil
	}
	return out, nil
}

// hydrate loads a body that is an artifact.
func (rt *Runtime) hydrate(r klbr.Record) (klbr.Record, error) {
	if r.Ref == nil || len(r.Body) > 0 {
		return r, nil
	}
	b, err := rt.opt.Artifacts.ReadAll(r.Ref.SHA256, maxBody)
	if err != nil {
		return r, fmt.Errorf("read the body of record %d: %w", r.Seq, err)
	}
	r.Body = b
	return r, nil
}
