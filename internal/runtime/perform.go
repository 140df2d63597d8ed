package runtime

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"klbr/internal/engine"
	"klbr/internal/klbr"
)

// perform does what a committed step asks for. Nothing here blocks: what takes
// time has a goroutine of the session's, whose outcome comes back as an event.
func (s *session) perform(out engine.Out) {
	for _, a := range out.Actions {
		name := fmt.Sprintf("%T", a)
		faultPoint("before " + name)
		switch a := a.(type) {
		case engine.Reply:
			if a.Err != nil {
				s.answer(a.To, nil, a.Err)
			} else {
				s.answer(a.To, a.Value, nil)
			}
		case engine.ReplyRecorded:
			s.replyRecorded(a, out.Records)
		case engine.StartTurn:
			s.startTurn(a.Turn)
		case engine.CancelTurn:
			s.cancelTurn(a.Attempt)
		case engine.CallModel:
			s.callModel(a)
		case engine.CancelModel:
			if cancel := s.calls[a.Called]; cancel != nil {
				cancel()
			}
		case engine.RunCell:
			s.runCell(a)
		case engine.InterruptCell:
			if k := s.kernel; k != nil && k.generation == a.Generation {
				k.interrupt(a.Cell, a.Reason)
			}
		case engine.EndKernel:
			if k := s.kernel; k != nil && k.generation == a.Generation {
				k.end()
			}
		case engine.TryEffect:
			s.effect(a.Effect, a.Type, a.Body, false)
		case engine.AskEffect:
			s.askEffect(a)
		default:
			panic("runtime: unknown action " + name)
		}
		faultPoint("after " + name)
	}
	s.endIdleWorkers()
}

// go_ runs f as one of the session's goroutines.
func (s *session) spawn(f func()) {
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		f()
	}()
}

func (s *session) callModel(a engine.CallModel) {
	l, err := s.ledger(a.Lane)
	if err == nil && l.Head != a.Head {
		err = fmt.Errorf("the ledger of lane %s is at %.12s, the call wants %.12s", a.Lane, l.Head, a.Head)
	}
	fence := s.fence
	done := engine.ModelDone{Turn: a.Turn, Lane: a.Lane, Key: a.Key, Called: a.Called, Route: a.Route}
	if err != nil {
		done.Err = klbr.AsError(err)
		s.post(fence, done)
		return
	}
	messages := slices.Clip(l.Messages)
	ctx, cancel := context.WithCancel(s.ctx)
	s.calls[a.Called] = cancel
	s.feed.open(liveCall{turn: a.Turn, lane: a.Lane, call: a.Called, kind: "model"})
	s.spawn(func() {
		defer cancel()
		faultPoint("before request")
		answer, outcome, err := s.rt.opt.Models.Do(ctx, ModelRequest{
			Route: a.Route, Messages: messages, Tools: a.Tools, Params: a.Params,
		}, func(d ModelDelta) { s.feed.write(a.Called, d) })
		faultPoint("after request")
		done.Answer, done.Outcome = answer, outcome
		if err != nil {
			done.Err = klbr.AsError(err)
		}
		s.inbox.put(item{query: func(*engine.State) { delete(s.calls, a.Called) }})
		s.post(fence, done)
	})
}

func (s *session) effect(n int64, kind string, body json.RawMessage, ask bool) {
	fence := s.fence
	s.spawn(func() {
		t := s.rt.opt.Effects[kind]
		e := Effect{Session: s.name, Number: n, Body: body}
		var r EffectResult
		switch {
		case t == nil && ask:
			r = EffectResult{Outcome: klbr.EffectUnknown, Reason: fmt.Sprintf("no transport for %s is configured now", kind)}
		case t == nil:
			r = EffectResult{Outcome: klbr.EffectFailed, Reason: fmt.Sprintf("no transport for %s is configured", kind)}
		case ask:
			r = t.Ask(s.ctx, e)
		default:
			faultPoint("before effect")
			r = t.Try(s.ctx, e)
			faultPoint("after effect")
		}
		if s.ctx.Err() != nil && r.Outcome == klbr.EffectUnknown {
			return // the next life asks
		}
		s.post(fence, engine.EffectDone{Effect: n, Outcome: r.Outcome, RemoteID: r.RemoteID, Reason: r.Reason})
	})
}

func (s *session) askEffect(a engine.AskEffect) {
	r, err := s.rt.opt.Store.Record(s.ctx, s.name, a.Intended)
	if err == nil {
		r, err = s.rt.hydrate(r)
	}
	var body klbr.EffectIntended
	if err == nil {
		err = json.Unmarshal(r.Body, &body)
	}
	if err != nil {
		s.post(s.fence, engine.EffectDone{Effect: a.Effect, Outcome: klbr.EffectUnknown, Reason: "its record cannot be read: " + err.Error()})
		return
	}
	s.effect(a.Effect, a.Type, body.Body, true)
}

// replyRecorded answers with what the log holds at a.Seq: from the records of
// this very step, or from the store.
func (s *session) replyRecorded(a engine.ReplyRecorded, fresh []klbr.Record) {
	for _, r := range fresh {
		if r.Seq == a.Seq && r.Kind != "cell.finished" {
			v, err := s.recorded(r, a.Opened, nil)
			s.answer(a.To, v, err)
			return
		}
	}
	s.spawn(func() {
		v, err := s.readRecorded(a)
		s.answer(a.To, v, err)
	})
}

func (s *session) readRecorded(a engine.ReplyRecorded) (any, error) {
	r, err := s.rt.opt.Store.Record(s.ctx, s.name, a.Seq)
	if err != nil {
		return nil, storageFailed(err)
	}
	if r, err = s.rt.hydrate(r); err != nil {
		return nil, err
	}
	var outputs []klbr.CellOutput
	if r.Kind == "cell.finished" {
		if outputs, err = s.cellOutputs(r, a.Opened); err != nil {
			return nil, err
		}
	}
	return s.recorded(r, a.Opened, outputs)
}

func (s *session) cellOutputs(finished klbr.Record, opened int64) ([]klbr.CellOutput, error) {
	var f klbr.CellFinished
	if err := json.Unmarshal(finished.Body, &f); err != nil {
		return nil, err
	}
	var outs []klbr.CellOutput
	for after := opened; after < finished.Seq; {
		rs, err := s.rt.opt.Store.Lane(s.ctx, s.name, finished.Lane, after, []klbr.Kind{"cell.output"}, 500)
		if err != nil {
			return nil, storageFailed(err)
		}
		if len(rs) == 0 {
			break
		}
		for _, r := range rs {
			after = r.Seq
			if r, err = s.rt.hydrate(r); err != nil {
				return nil, err
			}
			var o klbr.CellOutput
			if err := json.Unmarshal(r.Body, &o); err != nil {
				return nil, err
			}
			if o.Cell == f.Cell {
				outs = append(outs, o)
			}
		}
	}
	return outs, nil
}

// recorded is the wire result of a settled call: docs/workers.md.
func (s *session) recorded(r klbr.Record, opened int64, outputs []klbr.CellOutput) (any, error) {
	body, err := r.Decode()
	if err != nil {
		return nil, err
	}
	switch b := body.(type) {
	case *klbr.ModelAnswered:
		return modelResult{
			Called: b.Called, Answered: r.Seq, Head: b.Head, Count: b.Count, Answer: b.Answer, ModelOutcome: b.ModelOutcome,
		}, nil
	case *klbr.ModelFailed:
		return nil, &b.Error
	case *klbr.CellStarted:
		return CellAccepted{Cell: b.Cell, Seq: r.Seq}, nil
	case *klbr.CellFinished:
		return newCellResult(b, outputs), nil
	case *klbr.EffectSettled:
		return effectResult{Effect: b.Effect, Outcome: b.Outcome, RemoteID: b.RemoteID, Reason: b.Reason}, nil
	case *klbr.MessageSaid, *klbr.NoteLogged:
		return seqResult{Seq: r.Seq}, nil
	}
	return nil, klbr.Errorf(klbr.CodeInternal, "record %d (%s) settles no call", r.Seq, r.Kind)
}
